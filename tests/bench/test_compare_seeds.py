"""Seeds are added to runs: only the new ones are trained, and nothing is lost."""

import dataclasses
import json
import sys

import pytest

from switch_ema.bench.compare import run_comparison, summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.fingerprints import changed_inputs
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.train import loop
from tests.bench.test_compare import Killed, run, table

STACKED = CompareConfig(
    tasks=("noisy-digits:size=80",),
    methods=("plain", "ema", "switch-ema"),
    seeds=4,
    epochs=2,
    stack="auto",
)


def with_seeds(config, seeds):
    return dataclasses.replace(config, seeds=seeds)


@pytest.fixture
def trainings(monkeypatch):
    """The seeds of every training that starts."""
    seen = []
    original = loop.Training.run

    def noted(training, *arguments):
        seen.append(training.cell.seeds)
        return original(training, *arguments)

    monkeypatch.setattr(loop.Training, "run", noted)
    return seen


def test_seeds_are_added_to_a_finished_run(config, tmp_path, trainings):
    whole = table(run(with_seeds(config, 4), tmp_path / "whole")[0])
    path, _ = run(config, tmp_path)
    trainings.clear()
    again, text = run(with_seeds(config, 4), tmp_path)
    assert again == path and table(path) == whole
    assert sorted(trainings) == 3 * [(2,)] + 3 * [(3,)]
    assert "The run has 2 seeds so far; 2 are added." in text
    stored = json.loads((path.parent / "config.json").read_text())
    assert stored["seeds"] == 4 and open_run(path.parent)[0].seeds == 4


def test_fewer_seeds_than_stored_keep_them_all(config, tmp_path, trainings):
    path, _ = run(config, tmp_path, name="mine")
    before = table(path)
    trainings.clear()
    _, text = run(with_seeds(config, 1), tmp_path, name="mine")
    assert "The run already has 2 seeds; all of them are kept and compared." in text
    assert table(path) == before and not trainings
    assert json.loads((path.parent / "config.json").read_text())["seeds"] == 2


def values_of(path):
    (task,) = summarize_run(path.parent).tasks
    return task.curves["nll" if "nll" in task.curves else task.metrics[0].name]


@pytest.mark.parametrize("more", [{}, {"tasks": ("moons",)}])
def test_stacked_seeds_are_added_as_a_stack(tmp_path, trainings, more):
    config = dataclasses.replace(STACKED, **more)
    whole = values_of(run(with_seeds(config, 9), tmp_path / "whole")[0])
    path, _ = run(config, tmp_path)
    first = values_of(path)
    trainings.clear()
    run(with_seeds(config, 8), tmp_path)
    assert set(trainings) == {(4, 5, 6, 7)}
    run(with_seeds(config, 9), tmp_path)  # one seed alone is not stacked
    assert set(trainings) == {(4, 5, 6, 7), (8,)}
    found = values_of(path)
    for method, seeds in whole.items():
        assert list(found[method]) == list(range(9))
        for seed, curve in seeds.items():
            assert found[method][seed] == pytest.approx(curve, rel=1e-3)
        for seed, curve in first[method].items():
            assert found[method][seed] == curve


def test_the_stored_configuration_repeats_an_extended_run(tmp_path):
    path, _ = run(STACKED, tmp_path)
    run(with_seeds(STACKED, 8), tmp_path)
    stored = CompareConfig.from_json((path.parent / "config.json").read_text())
    assert stored.rounds == (4,)
    assert table(run(stored, tmp_path / "again")[0]) == table(path)


def test_an_interrupted_extension_is_resumed(config, tmp_path, monkeypatch):
    whole = table(run(with_seeds(config, 4), tmp_path / "whole")[0])
    run(config, tmp_path)
    original, calls = loop.take_step, 0

    def dies(*arguments):
        nonlocal calls
        calls += 1
        if calls == 30:
            raise Killed
        return original(*arguments)

    monkeypatch.setattr(loop, "take_step", dies)
    with pytest.raises(Killed):
        run(with_seeds(config, 4), tmp_path)
    monkeypatch.undo()
    summary = summarize_run(tmp_path / config.default_name)
    assert 0 < summary.tasks[0].missing < 6
    # Whatever number of seeds is given now, at most four, the extension goes on.
    path, _ = run(config, tmp_path)
    assert table(path) == whole


def test_tuning_chooses_the_same_settings_after_an_extension(tmp_path, trainings):
    config = dataclasses.replace(STACKED, seeds=2, tune="lr=0.01,0.1")
    path, _ = run(config, tmp_path)
    chosen = open_run(path.parent)[0].methods
    trainings.clear()
    run(with_seeds(config, 6), tmp_path)
    assert open_run(path.parent)[0].methods == chosen
    assert set(trainings) == {(2, 3, 4, 5)}  # no trials


def test_a_sweep_is_extended_at_each_value(tiny, tmp_path, trainings):
    config = CompareConfig(
        tasks=(tiny,), methods=("plain", "ema"), seeds=1, sweep="lr=0.01,0.1"
    )
    run(config, tmp_path)
    trainings.clear()
    path, _ = run(with_seeds(config, 2), tmp_path)
    assert trainings == 2 * [(1,)]
    tasks = summarize_run(path.parent).tasks
    assert [list(task.curves["error"]["ema"]) for task in tasks] == 2 * [[0, 1]]


def test_a_run_named_by_an_earlier_version_is_found(config, tmp_path):
    path, _ = run(config, tmp_path)
    path.parent.rename(tmp_path / config.earlier_name)
    _, text = run(config, tmp_path)
    assert "are already done" in text and not path.parent.exists()


def test_the_rounds_of_a_stored_configuration_are_checked():
    for rounds in ((0,), (4,), (3, 2), (5,)):
        with pytest.raises(UsageError, match="rounds must increase from 1 to less"):
            CompareConfig(seeds=4, rounds=rounds)
    with pytest.raises(UsageError, match="rounds must be a list of numbers, got"):
        CompareConfig.from_json('{"rounds": ["1"]}')


SCRIPT = """
import sys, torch, switch_ema

seed = int(open(f"seed-{sys.argv[1]}.txt").read())
torch.manual_seed(seed)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trial = switch_ema.trial(model, optimizer)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 2)).square().mean().backward()
    optimizer.step()
trial.evaluate(lambda: {"score": model.weight.sum().item()})
"""


def test_seeds_are_added_to_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    for seed in range(3):
        (tmp_path / f"seed-{seed}.txt").write_text(str(seed))
    config = CompareConfig(
        tasks=(f"script:{sys.executable} train.py {{seed}} --from=seed-{{seed}}.txt",),
        methods=("plain", "ema"),
        seeds=1,
    )
    options = RunOptions(out=tmp_path, device="cpu", executor="inline")
    done = run_comparison(config, options)
    assert done.error is None
    (tmp_path / "made-later.txt").write_text("by the script")
    more = run_comparison(with_seeds(config, 3), options)
    assert more.error is None and more.folder == done.folder
    (task,) = more.summary.tasks
    assert list(task.curves["score"]["ema"]) == [0, 1, 2]
    # The files of the added seeds are watched, too.
    stored = open_run(more.folder)[1].meta()["inputs"]
    (tmp_path / "seed-2.txt").write_text("7")
    assert changed_inputs(stored) == ["seed-2.txt"]
    with pytest.raises(UsageError, match=r"seed-2\.txt changed since"):
        run_comparison(with_seeds(config, 4), options)
