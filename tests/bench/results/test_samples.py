"""Pictures of a run: read back, and never from outside of its folder."""

import json

import pytest

from switch_ema.bench.results.samples import _slug, load_samples, save_samples

PNG = b"\x89PNG own"


@pytest.fixture
def run(tmp_path):
    save_samples(tmp_path / "run", "faces", {"plain": {"": PNG}, "ema": {"a": PNG}})
    return tmp_path / "run"


def test_pictures_come_back_in_the_order_of_the_methods(run):
    found = load_samples(run, "faces", ("ema", "plain"))
    assert [(one.method, one.caption, one.png) for one in found] == [
        ("ema", "a", PNG),
        ("plain", "", PNG),
    ]
    save_samples(run, "faces", {"ema": {"b": PNG}})
    found = load_samples(run, "faces", ("plain", "ema"))
    assert [(one.method, one.caption) for one in found] == [("plain", ""), ("ema", "b")]


@pytest.mark.parametrize("linked", ["picture", "list", "task", "samples"])
def test_links_in_a_run_do_not_show_files_from_outside(run, tmp_path, linked):
    secret = {"plain": {"": b"secret"}, "ema": {"a": b"secret"}}
    save_samples(tmp_path / "outside", "faces", secret)
    place, task = "samples", _slug("faces")
    name = {
        "picture": f"{place}/{task}/{_slug('plain')}-1.png",
        "list": f"{place}/{task}/samples.json",
        "task": f"{place}/{task}",
        "samples": place,
    }[linked]
    (run / name).rename(tmp_path / "moved")
    (run / name).symlink_to(tmp_path / "outside" / name)
    found = load_samples(run, "faces", ("plain", "ema"))
    assert all(one.png == PNG for one in found)
    assert len(found) == (1 if linked == "picture" else 0)


@pytest.mark.parametrize("name", ["../../../outside", "", "..", 3, None, "a\0b"])
def test_names_in_the_list_do_not_lead_out_of_the_folder(run, tmp_path, name):
    (tmp_path / "outside").write_bytes(b"secret")
    path = run / "samples" / _slug("faces") / "samples.json"
    path.write_text(json.dumps([{"method": "ema", "caption": "", "file": name}]))
    assert load_samples(run, "faces", ("ema",)) == ()
