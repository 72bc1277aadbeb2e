"""Jobs of Slurm, as submitit runs them on this machine: there is no Slurm here."""

from pathlib import Path
from traceback import format_exc

import pytest
from submitit.core.utils import FailedJobError
from submitit.slurm.slurm import SlurmExecutor

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute import slurm
from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.execute.failures import TrainingFailed
from switch_ema.bench.execute.local import train_or_explain
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import WorkerLost
from switch_ema.bench.train.result import CellResult
from tests.bench.execute.divided import assert_trained_as_one

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
    context = RunContext(folder, "cpu", workers=workers)
    [(_, result)] = train_cells(
        [cell],
        lambda _: context,
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
    local = train_or_explain(
        cell, RunContext(tmp_path / "local", "cpu"), lambda *_: None
    )
    result, _ = train(cell, tmp_path / "jobs", "cluster=debug")
    assert result.status == "done"
    assert result.values == local.values
    assert list((tmp_path / "jobs" / slurm.JOBS).glob("*_log.*"))


def test_a_job_is_told_to_save_before_its_end_and_may_be_requeued(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(SlurmExecutor, "affinity", classmethod(lambda _: 1))
    executor = slurm._executor(RunContext(tmp_path, "cpu"), 1, ["timeout_min=30"])
    script = executor._executor._make_submission_file_text("command", "0")
    assert "#SBATCH --requeue\n" in script
    assert "#SBATCH --signal=USR2@180\n" in script


class Ended:
    """A job of two tasks: the first has lost the second, which has raised an error."""

    def __init__(self, error):
        self.errors = (WorkerLost("gloo: closed by peer"), error)

    def task(self, number):
        self.number = number
        return self

    def result(self):
        try:
            raise self.errors[self.number]
        except Exception:
            raise FailedJobError(f"failed with trace:\n{format_exc()}\n---") from None


def test_an_error_of_one_task_is_one_line_and_a_lost_task_none(tiny, tmp_path):
    context = RunContext(tmp_path, "cpu", workers=2)
    ended = Ended(TrainingFailed("tiny.py, line 3: KeyError: 'lost key'"))
    result = slurm._Running(ended, cell_of(tiny), context).result()
    assert result == CellResult("failed", "tiny.py, line 3: KeyError: 'lost key'")
    with pytest.raises(WorkerLost):
        slurm._Running(Ended(WorkerLost("too")), cell_of(tiny), context).result()


def test_two_tasks_train_as_one_process_also_after_one_was_killed(file, tmp_path):
    cell = cell_of(f"{file}:Divided")
    one = train_or_explain(cell, RunContext(tmp_path / "one", "cpu"), lambda *_: None)
    two, told = train(cell, tmp_path / "two", "cluster=local", workers=2)
    assert (tmp_path / "killed").exists()
    assert_trained_as_one(two, one, told)


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
            r"nodes x tasks_per_node must equal the 1 workers .* 1 x 3",
        ),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(tiny, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        train(cell_of(tiny), tmp_path, *options)
