"""The paragraph for a paper: what was done, with citations that can be resolved."""

import json
import random
import re
from dataclasses import replace

import pytest

from switch_ema.bench.method_names import DESCRIPTIONS, base_name
from switch_ema.bench.report.methods_paragraph import methods_paragraph
from switch_ema.bench.report.references import reference_of
from switch_ema.bench.stats.paired import compare
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from tests.bench.report.synthetic import DIGITS, make_diverged_task, make_task


def told(*tasks: TaskSummary, latex: bool = False, **config: object) -> str:
    summary = ComparisonSummary(
        "run",
        [*tasks],
        json.dumps({"seeds": 8} | config),
        environment={"switch-ema": "1.2", "torch": "2.9"},
    )
    return " ".join(methods_paragraph(summary, latex=latex).split())


def test_it_names_methods_seeds_tests_and_versions() -> None:
    text = told(replace(make_task("digits", DIGITS), options={"ema": "decay=0.99"}))
    assert text.startswith(
        "We compared EMA (Polyak and Juditsky, 1992), SWA (Izmailov et al., 2018), "
        "Lookahead (Zhang et al., 2019) and Switch EMA (Li et al., 2024) with plain "
        "training on digits. The measure is accuracy (%) at the last epoch"
    )
    for part in (
        "the same 8 seeds (0 to 7)",
        "paired (n = 8 pairs). The number of seeds was fixed beforehand.",
        "EMA: decay=0.99",
        "two-sided paired t-tests (Student, 1908) at the level 0.03",
        "over the 4 methods of each task by Holm's method (Holm, 1979)",
        "97% confidence intervals",
        "smallest effect of interest, 0.5 points (Schuirmann, 1987)",
        "Software: switch-ema 1.2 with torch 2.9.",
    ):
        assert part in text
    assert "sign tests" not in text and "Hall" not in text, "these were not used"


def test_tests_are_named_where_they_were_used() -> None:
    plain = {seed: [float(seed)] for seed in range(12)}
    gains = [0.31, 0.32, 0.34, 0.35, 0.3, 0.29, 0.33, 0.28, 0.27, 0.36, 0.37, -0.2]
    curves = {
        "plain": plain,
        "ema": {seed: [seed + gains[seed]] for seed in plain},
        "swa": plain,
    }
    task = make_task("digits", {"plain": 0.0})
    task = replace(
        task,
        curves={"accuracy": curves},
        results={"accuracy": compare(curves, higher_is_better=True)},
    )
    text = told(task)
    assert "exact sign tests were used (SWA on digits)" in text
    assert "adjusted by Hall's transformation (Hall, 1992) (EMA on digits)" in text
    assert "@article{hall1992removal," in text


def test_methods_that_did_not_act_and_seeds_that_are_not_paired_are_told() -> None:
    draw = random.Random(0)
    runs = [{s + start: [draw.gauss(0, 1)] for s in range(8)} for start in (0, 0, 50)]
    curves = dict(zip(("plain", "swa", "ema"), runs, strict=True))
    idle = {"swa": "its start is after the end"}
    results = compare(curves, higher_is_better=True, idle=idle)
    task = replace(
        make_task("digits", {"plain": 0.0}),
        curves={"accuracy": curves},
        results={"accuracy": results},
    )
    text = told(task)
    assert "Welch's test (Welch, 1947) was used (EMA on digits)" in text
    assert "Not judged, because it did not act: SWA on digits." in text
    assert "corrected over the 1 method of each task" in text


def test_cells_with_fewer_seeds_and_added_seeds_are_told() -> None:
    text = told(make_diverged_task(), rounds=[4])
    assert re.search(r"\(n = 8 pairs, except n = 7 for Lookahead on .*, where", text)
    assert "after looks at the results with 4 of them, for which the tests do" in text
    assert "fixed beforehand" not in text


@pytest.mark.parametrize("latex", [True, False])
def test_every_citation_has_its_entry(latex: bool) -> None:
    text = told(make_task("digits", DIGITS), latex=latex)
    entries = re.findall(r"@\w+\{(\w+),", text)
    assert len(entries) == len(set(entries)) == 4 + 3
    if latex:
        assert set(re.findall(r"\\citep\{(\w+)\}", text)) == set(entries)
        assert "accuracy (\\%)" in text
    else:
        years = re.findall(r"\([A-Z][\w .]+, (\d{4})\)", text.partition("@")[0])
        assert sorted(years) == sorted(re.findall(r"year = \{(\d+)\}", text))


def test_every_method_has_a_paper_or_is_ours() -> None:
    ours = {"plain", "plain-again", "tail-ema"}
    without = {base_name(m) for m in DESCRIPTIONS if reference_of(m) is None}
    assert without == ours


def test_untrusted_names_stay_text() -> None:
    text = told(make_task("a\x1b[2J\\b", {"plain": 0.0, "ema": 1.0}), latex=True)
    assert "\x1b" not in text
    assert "\\textbackslash{}b" in text


def test_seeds_that_were_added_until_it_was_decided_are_told() -> None:
    task = replace(make_task("digits", DIGITS), sequential=True, looks=(4, 8))
    text = told(task, until_decided=True, rounds=[4])
    assert (
        "Seeds were added until every verdict was settled (2 looks, after 4 and 8 "
        "seeds); tests and intervals are valid at every look (Wang and Ramdas, 2023)."
    ) in text
    assert "arXiv:2310.03722" in text and "fixed beforehand" not in text
