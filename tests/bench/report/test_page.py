"""The page as text: self-contained, escaped, accessible, written in one go."""

import base64
import hashlib
import html
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from switch_ema.analysis.method_style import display_name
from switch_ema.bench.report.numbers import typographic
from switch_ema.bench.report.page import _with_code, render_page, write_page
from switch_ema.bench.report.verdict_text import best_sentence, verdicts
from switch_ema.bench.stats.paired import compare
from tests.bench.report.synthetic import (
    NASTY_METHOD,
    NASTY_TASK,
    make_summary,
    make_task,
)

Attributes = dict[str, str | None]


class Outline(HTMLParser):
    """The elements of a page, the text of its scripts, and the rest of its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, Attributes]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data

    def all(self, tag: str) -> list[Attributes]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def text() -> str:
    return render_page(make_summary())


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    return Outline(text)


def test_nothing_is_loaded_from_anywhere(text: str, outline: Outline) -> None:
    for tag, attributes in outline.elements:
        assert not attributes.keys() & {"src", "srcset", "data", "action"}, tag
        assert tag not in {"link", "img", "iframe", "object", "base"}
        assert (attributes.get("href") or "#").startswith("#")
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_allows_the_pages_own_scripts_only(outline: Outline) -> None:
    (policy,) = (
        attributes["content"] or ""
        for attributes in outline.all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    for script in outline.scripts[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_plotly_is_there_once(text: str, outline: Outline) -> None:
    assert text.count("* plotly.js v") == 1
    assert len(outline.scripts) == 3


def test_names_are_escaped(text: str, outline: Outline) -> None:
    visible = text[: text.index('<script type="application/json"')]
    assert "<script" not in visible
    assert html.escape(NASTY_TASK) in visible.replace("&#34;", "&quot;").replace(
        "&#39;", "&#x27;"
    )
    assert NASTY_TASK in outline.text
    assert display_name(NASTY_METHOD) in outline.text
    assert not outline.all("i")
    assert "onerror" not in {name for _, own in outline.elements for name in own}


def test_the_data_cannot_leave_its_script_element(outline: Outline) -> None:
    figures = json.loads(outline.scripts[0])
    assert not set("<>&") & set(outline.scripts[0])
    names = {trace.get("name") for figure in figures for trace in figure["traces"]}
    assert any("&lt;/script&gt;" in (name or "") for name in names)
    assert len(figures) == 2 * (2 + 1 + 1)


def test_the_verdict_is_told_in_words_with_its_numbers(outline: Outline) -> None:
    for task in make_summary().tasks:
        for _, sentence in verdicts(task, display_name):
            assert typographic(sentence) in outline.text


def test_the_answer_comes_first_and_every_difference_is_in_the_forest(
    text: str, outline: Outline
) -> None:
    summary = make_summary()
    first = text.partition('data-task="')[0]
    for task in summary.tasks:
        assert html.escape(
            typographic(best_sentence(task, display_name)), quote=False
        ) in (first.replace("&#39;", "'").replace("&#34;", '"'))
    rows = [own for tag, own in outline.elements if own.get("class") == "mean"]
    judged = [r for t in summary.tasks for r in t.results["accuracy"] if r.difference]
    assert len(rows) == len(judged)


def test_methods_have_one_name_and_what_to_type_stands_beside_their_options() -> None:
    summary = make_summary()
    tasks = [replace(t, options={"switch-ema": "decay=0.9"}) for t in summary.tasks]
    outline = Outline(render_page(replace(summary, tasks=tasks)))
    body = outline.text.partition("Contents")[2].partition("Configuration")[0]
    assert "Switch EMA is best" in body
    typed = [line for line in body.splitlines() if "switch-ema" in line]
    commands = ("switch-ema compare", "switch-ema report")
    typed = [line for line in typed if not any(c in line for c in commands)]
    assert [line.strip() for line in typed] == ["Switch EMAswitch-emadecay=0.9"] * len(
        tasks
    )


def test_what_was_trained_is_told_and_an_earlier_run_says_that_it_is_not() -> None:
    summary = make_summary()
    assert "made by a version that did not record" in render_page(summary)
    trained = {"Optimizer": "SGD, learning rate 0.05", "Batch": "16 examples"}
    tasks = [
        replace(t, trained=trained, options={"ema": "decay=0.123"})
        for t in summary.tasks
    ]
    page = render_page(replace(summary, tasks=tasks))
    assert "not recorded" not in page
    for words in (*trained.values(), "decay=0.123"):
        assert words in page


def test_configuration_environment_and_command_are_shown(outline: Outline) -> None:
    summary = make_summary()
    assert summary.config in outline.text
    assert "<dirty>" in outline.text
    assert "switch-ema compare noisy-digits 'my tasks/" in outline.text
    given = Outline(render_page(summary, command="switch-ema compare --again"))
    assert "switch-ema compare --again" in given.text


def test_headings_do_not_skip_a_level(outline: Outline) -> None:
    levels = [int(tag[1]) for tag, _ in outline.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_tables_and_figures_can_be_read_aloud(outline: Outline) -> None:
    assert all(header.get("scope") for header in outline.all("th"))
    plots = [own for own in outline.all("div") if own.get("class") == "plot"]
    assert len(plots) == 8
    assert all(own["role"] == "img" and own["aria-label"] for own in plots)
    assert "switch-ema" in (plots[0]["aria-label"] or "")


def test_ids_are_unique_and_links_lead_somewhere(outline: Outline) -> None:
    ids = [own["id"] for _, own in outline.elements if "id" in own]
    assert len(ids) == len(set(ids))
    for link in outline.all("a"):
        assert (link["href"] or "")[1:] in ids


def test_the_page_replaces_the_old_one_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "report.html"
    assert write_page(make_summary(), path) == path
    first = path.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]

    def full(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_page(replace(make_summary(), name="other"), path)
    assert path.read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_one_seed_one_epoch_and_nothing_finished_can_be_shown() -> None:
    task = make_task("tiny", {"plain": 0.0, "ema": 0.0})
    curves = {"plain": {0: [1.0]}, "ema": {}}
    tiny = replace(
        task,
        metrics=task.metrics[:1],
        curves={"accuracy": curves},
        results={"accuracy": compare(curves, higher_is_better=True)},
        costs=[],
    )
    alone = {"accuracy": tiny.results["accuracy"][:1]}
    tasks = [tiny, replace(tiny, results=alone)]
    outline = Outline(render_page(replace(make_summary(), tasks=tasks)))
    text = " ".join(outline.text.split())
    assert "Undecided: with n = 0 there are too few seeds" in text
    assert "only the baseline was trained" in outline.text
    assert "nan" not in outline.text.lower()


def test_what_can_be_typed_is_marked_and_escaped() -> None:
    assert _with_code("Next: --tune lr (why <b>?); --methods ema+best, 3 - 2.") == (
        "Next: <code>--tune lr</code> (why &lt;b&gt;?); <code>--methods</code> "
        "<code>ema+best</code>, 3 - 2."
    )
