"""Seeds that are not what they seem: unpaired, or copies of each other."""

import json
import math
import random
import sys

import pytest
from scipy import stats

from switch_ema.bench.compare import run_comparison, summarize_run
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.judge import judge
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.stats.paired import LEVEL, compare, head_to_head
from switch_ema.bench.stats.summary import ComparisonSummary
from tests.bench.conftest import TINY_TASK
from tests.bench.report.test_terminal import shown

METHODS = ("plain", "ema:decay=0.9", "switch-ema", "plain-again")
CARELESS = """

import os


class Loose(Tiny):
    def train_loader(self, epoch):
        drawn = int.from_bytes(os.urandom(4), "big")
        return Batches((self.x, self.y), 8, drawn, epoch=epoch)


class Reborn(Tiny):
    def model(self):
        torch.seed()
        return super().model()


class Deaf(Tiny):
    def __init__(self, seed, **more):
        super().__init__(0, **more)
        self.seed = seed

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 1))

    def train_loader(self, epoch):
        return Batches((self.x, self.y), 8, 0, epoch=epoch)


class Warm(Deaf):
    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1))
"""


@pytest.fixture
def summary_of(tmp_path):
    """Compare the methods on one of the tasks above."""
    file = tmp_path / "careless.py"
    file.write_text(TINY_TASK + CARELESS)

    def run(name, **more):
        settings = {"methods": METHODS, "seeds": 4, **more}
        config = CompareConfig(tasks=(f"{file}:{name}",), **settings)
        options = RunOptions(out=tmp_path / name, device="cpu", executor="inline")
        done = run_comparison(config, options)
        assert done.error is None
        (task,) = summarize_run(done.folder).tasks
        return task

    return run


def degrees(task):
    return {r.method: r.difference.freedom for r in task.results["error"][1:]}


@pytest.mark.parametrize(
    ("name", "what"), [("Loose", "batches"), ("Reborn", "weights")]
)
def test_a_task_that_draws_outside_its_seed_is_named_and_unpaired(
    summary_of, name, what
):
    task = summary_of(name)
    apart = ["switch-ema"] if name == "Loose" else ["switch-ema", "plain-again"]
    (warning,) = task.problems
    assert warning.split(" draws random numbers")[0].endswith(f"careless.py:{name}")
    assert f"from other {what} than plain" in warning and "Welch" in warning
    found = degrees(task)
    assert found.pop("ema:decay=0.9") == 0  # it shares the baseline's training
    assert [method for method, freedom in found.items() if freedom] == apart
    text = " ".join(shown(ComparisonSummary("run", [task], "{}")).split())
    assert "n = 4, unpaired, p = " in text and "Welch's test, after Holm" in text
    two = (task.curves["error"], "switch-ema", "ema:decay=0.9")
    assert head_to_head(*two, higher_is_better=False).freedom > 0


def test_a_careful_task_is_paired(summary_of):
    task = summary_of("Tiny")
    assert task.problems == [] and not any(degrees(task).values())
    assert [*task.curves["error"]["switch-ema"]] == [0, 1, 2, 3]


def test_seeds_without_effect_count_as_one(summary_of):
    task = summary_of("Deaf", methods=METHODS[:3])
    (warning,) = task.problems
    assert "The seed has no effect on" in warning and "4 seeds end in the" in warning
    assert [r.last.n for r in task.results["error"]] == [1, 1, 1]
    assert {r.verdict for r in task.results["error"][1:]} == {"undecided"}


def test_seeds_that_differ_only_in_dropout_count(summary_of):
    task = summary_of("Warm", methods=METHODS[:3])
    assert task.problems == [] and task.results["error"][1].last.n == 4


SCRIPT = """
import sys, torch, switch_ema

torch.manual_seed({seed})
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trial = switch_ema.trial(model, optimizer)
for _ in range(3):
    optimizer.zero_grad()
    (model(torch.randn(8, 2)) - 1).square().mean().backward()
    optimizer.step()
    trial.end_epoch()
trial.evaluate(lambda: {{"loss": model.weight.square().sum().item()}})
"""


@pytest.mark.parametrize(
    ("seed", "told"),
    [
        ("0", "The seed has no effect on"),
        ("torch.seed()", "start from other weights than plain"),
    ],
)
def test_a_script_that_ignores_its_seed_is_named(tmp_path, monkeypatch, seed, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT.format(seed=seed))
    config = CompareConfig(
        tasks=(f"script:{sys.executable} train.py {{seed}}",),
        methods=("plain", "switch-ema"),
        seeds=2,
    )
    options = RunOptions(out=tmp_path, device="cpu", executor="inline")
    done = run_comparison(config, options)
    assert done.error is None
    (task,) = done.summary.tasks
    assert told in task.problems[0].replace("starts", "start")
    assert f"{sys.executable} train.py {{seed}}" in task.problems[0]
    assert {r.verdict for r in task.results["loss"][1:]} == {"undecided"}


def test_logs_that_are_copies_are_not_judged(tmp_path):
    logs = {}
    for method, value in (("plain", 0.712345), ("ema", 0.81)):
        logs[method] = [tmp_path / f"{method}-seed-{seed}.json" for seed in range(5)]
        for path in logs[method]:
            path.write_text(json.dumps([{"accuracy": value}]))
    judged = judge(logs)
    (task,) = judged.summary.tasks
    assert "same values to the last digit" in task.problems[0]
    assert [r.last.n for r in task.results["accuracy"]] == [1, 1]
    assert task.results["accuracy"][1].verdict == "undecided"


def test_welch_is_welch():
    draw = random.Random(0)
    plain = {seed: [draw.gauss(0, 1)] for seed in range(6)}
    ema = {seed: [draw.gauss(2, 3)] for seed in range(10, 15)}
    (_, result) = compare({"plain": plain, "ema": ema}, higher_is_better=True)
    own, base = ([curve[0] for curve in seeds.values()] for seeds in (ema, plain))
    expected = stats.ttest_ind(own, base, equal_var=False)
    ends = expected.confidence_interval(1 - LEVEL)
    d = result.difference
    assert d.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert d.freedom == pytest.approx(expected.df, rel=1e-9)
    assert (d.low, d.high) == pytest.approx((ends.low, ends.high), rel=1e-9)
    assert d.n == 5 and result.verdict == "undecided"


def test_values_without_spread_are_no_evidence_unpaired_either():
    plain, ema = {0: [50.0], 1: [50.0], 2: [50.0]}, {5: [51.0], 6: [51.0], 7: [51.0]}
    (_, result) = compare({"plain": plain, "ema": ema}, higher_is_better=True)
    assert result.verdict == "undecided" and result.difference.p > LEVEL
    zeros = {
        method: {s: [0.0] for s in own}
        for method, own in {"plain": plain, "ema": ema}.items()
    }
    (_, nothing) = compare(zeros, higher_is_better=True)
    assert nothing.difference.p == 1 and math.isnan(nothing.difference.low)
