"""`switch-ema data`: what the tables need, what was found, and downloads."""

import pytest

from switch_ema.zoo.data.sample_files import write_sample


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCH_HOME", raising=False)
    return tmp_path


def lines_with(out, name):
    return [line for line in out.splitlines() if name in line]


def test_each_table_says_what_is_missing(folder, call):
    write_sample("cifar10", folder, count=2)
    code, out, _ = call("data")
    assert code == 0
    (table_8, *_) = lines_with(out, "table-8")
    assert table_8.split() == ["table-8", "cifar10", "celeba,", "weights-inception"]
    assert "nothing" in lines_with(out, "figure-boundary")[0]
    after = out[out.index("Where it is") :].splitlines()
    places = dict(line.split(maxsplit=1) for line in after if line)
    assert places["cifar10"].split() == ["found", str(folder / "cifar-10-batches-py")]
    page = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
    assert places["celeba"].split() == ["missing", page]


def test_addresses_are_not_broken_in_narrow_terminals(folder, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    for arguments in ((), ("weights-inception",)):
        code, out, _ = call("data", *arguments)
        assert code == 0 and "v0.2.0/weights-inception-2015-12-05-6726825d.pth" in out


def test_details_of_a_table_and_a_dataset(folder, call):
    write_sample("mnist", folder, count=2)
    code, out, _ = call("data", "table-9", "imagenet")
    assert code == 0
    assert f"mnist\n  found: {folder}" in out
    assert "missing: set SWITCH_EMA_DATA to a folder with mnist_test_seq.npy" in out
    assert "publisher: https://image-net.org/download.php" in out
    assert "cifar" not in out


def test_downloads_go_to_the_users_folder(folder, call, monkeypatch):
    import torchvision

    def fake(root, *, download):
        assert root == folder and download
        write_sample("cifar100", root, count=2)

    monkeypatch.setattr(torchvision.datasets, "CIFAR100", fake)
    code, out, _ = call("data", "table-3", "--download")
    assert code == 0
    assert f"Downloaded cifar100 to {folder}." in out
    assert f"cifar100\n  found: {folder}" in out


def test_what_cannot_be_downloaded_is_said(folder, call):
    code, out, err = call("data", "table-5", "coco", "--download")
    assert code == 2
    assert "no library can download imagenet: get it from https://image-net.org" in out
    assert "imagenet and coco could not be downloaded" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--download",), "--download needs the names of tables or datasets"),
        (("table-33",), "table-3"),
        (("cifar-100",), "cifar100"),
    ],
)
def test_bad_names_are_one_sentence(folder, call, arguments, message):
    code, _, err = call("data", *arguments)
    assert code == 2 and message in err and "Traceback" not in err
