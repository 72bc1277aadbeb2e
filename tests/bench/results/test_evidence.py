"""Evidence files: small, stable, and as good as the run folder they come from."""

import json
import math
from dataclasses import replace

import pytest

from switch_ema.bench.compare import run_comparison, summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.evidence import (
    MOST_POINTS,
    open_results,
    publish,
    read_evidence,
    restore,
)
from switch_ema.bench.text import is_evidence
from tests.bench.conftest import TINY_TASK

OPTIONS = {"executor": "inline", "device": "cpu", "name": "run"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(TINY_TASK)
    return tmp_path


def config(**settings):
    methods = ("plain", "ema:decay=0.9", "switch-ema:decay=0.9")
    given = {"tasks": ("tiny.py:Tiny",), "methods": methods, "seeds": 2, "epochs": 2}
    return CompareConfig(**{**given, **settings})


def trained(here, own, out="runs"):
    options = RunOptions(out=here / out, **OPTIONS)
    return run_comparison(own, options).folder


def verdicts(summary):
    return {
        (task.title, metric, result.method): (
            result.verdict,
            result.last.n,
            pytest.approx(result.last.mean, rel=1e-7, nan_ok=True),
        )
        for task in summary.tasks
        for metric, results in task.results.items()
        for result in results
    }


def test_a_file_gives_the_same_summary_as_its_run(here):
    run = trained(here, config())
    file = publish(run, here / "evidence/own.jsonl", "own")
    assert is_evidence(file) and not is_evidence(run)
    before, after = summarize_run(run), summarize_run(file)
    assert verdicts(before) == verdicts(after)
    one, other = before.tasks[0], after.tasks[0]
    assert other.training_losses.keys() == one.training_losses.keys() != set()
    for method, losses in one.training_losses.items():
        assert other.training_losses[method] == pytest.approx(losses, rel=1e-7)
    assert one.trained == other.trained and one.options == other.options
    assert [c.methods for c in one.costs] == [c.methods for c in other.costs]
    assert other.missing == 0 and other.problems == []
    assert before.environment == after.environment
    assert after.environment["torch"]


def test_added_seeds_are_added_lines(here):
    file = here / "evidence/own.jsonl"
    publish(trained(here, config()), file, "own")
    before = file.read_text().splitlines()
    publish(trained(here, config(seeds=3)), file, "own")
    after = file.read_text().splitlines()
    values = [line for line in before if '"meta"' not in line]
    assert [line for line in after if '"meta"' not in line][: len(values)] == values
    assert len(after) > len(before)
    with pytest.raises(UsageError, match="trainings that this run lacks"):
        publish(trained(here, config(), out="short"), file, "own")


def test_publishing_twice_changes_nothing(here):
    run, file = trained(here, config()), here / "own.jsonl"
    once = publish(run, file, "own").read_bytes()
    assert publish(run, file, "own").read_bytes() == once
    for line in once.decode().splitlines():
        json.loads(line)
    assert str(here) not in once.decode()


def test_a_restored_run_goes_on_where_the_published_one_ended(here):
    file = publish(trained(here, config()), here / "own.jsonl", "own")
    restore(read_evidence(file), here / "again/run")
    longer = config(seeds=3)
    summary = run_comparison(longer, RunOptions(out=here / "again", **OPTIONS)).summary
    straight = summarize_run(trained(here, longer, out="straight"))
    # An extension is a round of its own, which does not matter for single seeds.
    assert verdicts(summary) == verdicts(straight)
    publish(here / "again/run", file, "own")
    assert summarize_run(file).tasks[0].results["error"][0].last.n == 3


def test_curves_are_thinned_and_other_metrics_have_their_last_value(here):
    epochs = 2 * MOST_POINTS + 3
    run = trained(here, config(epochs=epochs, seeds=1, methods=("plain", "ema")))
    file = publish(run, here / "own.jsonl", "own")
    curves = summarize_run(file).tasks[0].curves
    kept = [value for value in curves["error"]["ema"][0] if not math.isnan(value)]
    full = summarize_run(run).tasks[0].curves["error"]["ema"][0]
    assert len(curves["error"]["ema"][0]) == epochs and len(kept) <= MOST_POINTS
    assert kept[-1] == pytest.approx(full[-1], rel=1e-7)
    slopes = curves["slope"]["plain"][0]
    assert math.isnan(slopes[0]) and not math.isnan(slopes[-1])


def test_looks_and_sweeps_survive(here):
    decided = config(until_decided=True, max_seeds=16, smallest_effect=10.0, epochs=1)
    run = trained(here, decided)
    file = publish(run, here / "looks.jsonl", "looks")
    (task,) = summarize_run(file).tasks
    assert task.sequential and task.looks == summarize_run(run).tasks[0].looks != ()
    swept = trained(here, config(sweep="lr=0.01,0.1"), out="sweep")
    file = publish(swept, here / "sweep.jsonl", "sweep")
    summary = summarize_run(file)
    assert [task.point for task in summary.tasks] == ["lr = 0.01", "lr = 0.1"]
    assert verdicts(summary) == verdicts(summarize_run(swept))


def test_another_comparison_is_not_overwritten(here):
    file = publish(trained(here, config()), here / "own.jsonl", "own")
    other = trained(here, config(epochs=1), out="other")
    before = file.read_bytes()
    with pytest.raises(UsageError, match="comparison with other settings; delete it"):
        publish(other, file, "own")
    assert file.read_bytes() == before


def test_a_changed_recipe_is_not_continued(here):
    file = publish(trained(here, config()), here / "own.jsonl", "own")
    changed = TINY_TASK.replace("Recipe(epochs=3)", "Recipe(epochs=3, clip=1.0)")
    (here / "tiny.py").write_text(changed)
    with pytest.raises(UsageError, match=r"differently than when .*own.jsonl was"):
        restore(read_evidence(file), here / "again/run")


def test_files_on_one_machine_are_not_published(here):
    run = trained(here, config(tasks=(f"{here}/tiny.py:Tiny",)))
    with pytest.raises(UsageError, match="others could not train it"):
        publish(run, here / "own.jsonl", "own")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The text of an evidence file."""
    here = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        (here / "tiny.py").write_text(TINY_TASK)
        run = trained(here, config(seeds=1))
        return publish(run, here / "own.jsonl", "own").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "is not JSON"),
        (lambda lines: ["[]", *lines[1:]], "is not an evidence file of format 1"),
        (lambda lines: ["{}", *lines[1:]], "is not an evidence file of format 1"),
        (lambda lines: [*lines, "{"], "line .*is not JSON"),
        (lambda lines: [*lines, "3"], "line .*is damaged"),
        (lambda lines: [*lines, '{"cell": {}}'], "line .*is damaged"),
        (lambda lines: lines[:1], "has no configuration"),
        (lambda lines: [s.replace('"last"', '"l"') for s in lines], "are damaged"),
        (
            lambda lines: [s.replace('"seeds": [0]', '"seeds": [9]') for s in lines],
            r"does not train tiny\.py:Tiny with .* and seed 9",
        ),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path, published, change, message):
    file = tmp_path / "own.jsonl"
    lines = change(published.splitlines())
    file.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(UsageError, match=message):
        read_evidence(file)
        open_results(file)[1].close()


def test_diverged_trainings_are_published(here):
    own = config(tasks=("tiny.py:Tiny:diverge=True",), seeds=2)
    run = trained(here, own)
    file = publish(run, here / "own.jsonl", "own")
    before, after = summarize_run(run), summarize_run(file)
    assert verdicts(before) == verdicts(after)
    found = read_evidence(file)
    assert {cell.facts["status"] for cell in found.cells} == {"diverged"}
    assert replace(found.given, seeds=9).identity == own.identity
