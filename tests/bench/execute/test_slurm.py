"""Jobs of Slurm, as submitit runs them on this machine: there is no Slurm here."""

import os
from pathlib import Path

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute import slurm
from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.execute.local import train_or_explain
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train.loop import Place

TASKS = """

class Divided(Tiny):
    def model(self):
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def train_loader(self, epoch):
        import os
        from pathlib import Path

        killed = Path(__file__).parent / "killed"
        if os.environ.get("RANK") == "1" and epoch == 1 and not killed.exists():
            killed.touch()
            os._exit(1)
        return super().train_loader(epoch)
"""


@pytest.fixture
def file(tiny):
    path = Path(tiny.partition(":")[0])
    path.write_text(path.read_text() + TASKS)
    return path


def cell_of(task):
    [cell] = make_plan(CompareConfig(tasks=(task,), methods=("switch-ema",), seeds=1))
    return cell


def train(cell, folder, *options, workers=1):
    told = []
    place = Place(folder, "cpu", workers=workers)
    [(_, result)] = train_cells(
        [cell],
        lambda _: place,
        0,
        lambda _, *now: told.append(now),
        executor="slurm",
        slurm=options,
    )
    return result, told


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.05)


def test_a_job_has_the_numbers_of_a_local_training(tiny, tmp_path):
    cell = cell_of(tiny)
    local = train_or_explain(cell, Place(tmp_path / "local", "cpu"), lambda *_: None)
    result, _ = train(cell, tmp_path / "jobs", "cluster=debug")
    assert result.status == "done"
    assert result.values == local.values
    assert list((tmp_path / "jobs" / slurm.JOBS).glob("*_log.*"))


def test_an_error_of_the_task_is_one_line(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("pdb.post_mortem", lambda *_: None)  # which debug would call
    result, _ = train(cell_of(f"{tiny}:fail=True"), tmp_path, "cluster=debug")
    assert result.status == "failed"
    assert result.message.endswith("KeyError: 'lost key'")
    assert "\n" not in result.message


@pytest.mark.skipif(
    "SWITCH_EMA_SLOW_TESTS" not in os.environ, reason="starts five processes"
)
def test_two_tasks_train_as_one_process_also_after_one_was_killed(file, tmp_path):
    cell = cell_of(f"{file}:Divided")
    one = train_or_explain(cell, Place(tmp_path / "one", "cpu"), lambda *_: None)
    two, told = train(cell, tmp_path / "two", "cluster=local", workers=2)
    assert (tmp_path / "killed").exists()
    assert two.status == "done"
    assert told[-1][0] == 3
    for metric, epochs in one.values["switch-ema"].items():
        found = two.values["switch-ema"][metric]
        assert found == [[pytest.approx(value, abs=1e-5)] for [value] in epochs]
    assert two.trained["Workers"].startswith("2, which took 4 each of the 8 examples")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), 'Slurm cannot be used: Could not detect "srun"'),
        (("cluster=nobody",), "Slurm cannot be used: .* executor named nobody"),
        (
            ("cluster=local", "slurm_sort=gpu"),
            "cannot be used: Unknown argument 'sort'",
        ),
        (
            ("tasks_per_node=3",),
            r"nodes x tasks_per_node must be the 1 workers .* 1 x 3",
        ),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(tiny, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        train(cell_of(tiny), tmp_path, *options)
