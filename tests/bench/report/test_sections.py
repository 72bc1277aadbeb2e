"""Sections of analysis: stored, read back, shown safely."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from switch_ema.bench.report.page import write_analysis_page
from switch_ema.bench.report.sections import (
    AnalysisSection,
    Picture,
    Sheet,
    load_sections,
    save_section,
)

SVG = "<svg xmlns='http://www.w3.org/2000/svg'></svg>"


def section(key="one", **more):
    return AnalysisSection(
        key=key,
        title="A <title>",
        command="switch-ema x",
        paragraphs=["Some & more."],
        sheets=[Sheet(caption="numbers", header=["a", "b"], rows=[["<x>", "-1"]])],
        pictures=[Picture(name="p", caption="c", alternative="a")],
        **more,
    )


def test_a_section_comes_back_with_its_pictures(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "p.svg").write_text(SVG)
    save_section(section(), tmp_path)
    save_section(section("two"), tmp_path)
    first, second = load_sections(tmp_path)
    assert (first.key, second.key) == ("one", "two")
    assert first.sheets == section().sheets
    encoded = first.pictures[0].source.partition("base64,")[2]
    assert base64.b64decode(encoded).decode() == SVG


def test_a_deleted_picture_is_left_out_and_a_run_without_sections_has_none(tmp_path):
    assert load_sections(tmp_path) == []
    save_section(section(), tmp_path)
    assert load_sections(tmp_path)[0].pictures == []


def test_a_page_shows_names_as_text_and_asks_nobody_for_anything(tmp_path):
    page = write_analysis_page("T", [section()], tmp_path / "report.html").read_text()
    assert "A &lt;title&gt;" in page and "&lt;x&gt;" in page and "\u22121" in page
    assert "default-src 'none'" in page and "<script" not in page
    assert "<details>" not in page


@pytest.mark.parametrize("linked", ["figures/p.svg", "figures", "sections"])
def test_links_in_a_run_do_not_show_files_from_outside(tmp_path, linked):
    outside = tmp_path / "outside"
    (outside / "figures").mkdir(parents=True)
    (outside / "figures" / "p.svg").write_text("secret")
    save_section(replace(section(), title="secret title"), outside)
    run = tmp_path / "run"
    run.mkdir()
    for name in ("figures", "sections"):
        if name == linked:
            (run / name).symlink_to(outside / name)
        else:
            (run / name).mkdir()
    if linked == "figures/p.svg":
        (run / linked).symlink_to(outside / linked)
    if linked != "sections":
        save_section(section(), run)
    (found,) = load_sections(run)
    assert found.pictures == [] and "secret" not in found.title
    page = write_analysis_page("T", [found], Path(tmp_path, "page.html")).read_text()
    assert base64.b64encode(b"secret").decode() not in page
