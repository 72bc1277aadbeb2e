"""Trains one cell with several workers on a Ray cluster, through Ray Train."""

from tempfile import TemporaryDirectory
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchConfig, TorchTrainer

from switch_ema.bench.execute.failures import TrainingFailed, train_or_raise
from switch_ema.bench.execute.local_workers import RETRIES, given_up
from switch_ema.bench.execute.ray import Job, Outcome, Share, train_anywhere
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import PATIENCE, train_as_worker
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import OnProgress


def train_together(job: Job, board: Any, share: Share) -> Outcome:
    """Train a cell with several workers and wait for them.

    If a worker is lost, the others end and all of them resume from the checkpoint.
    """
    for _ in range(RETRIES + 1):
        try:
            # Without a folder, Ray Train would write to the user's home.
            with TemporaryDirectory(prefix="switch-ema-") as folder:
                trainer = _trainer(job, board, share, folder)
                outcome: Outcome = trainer.fit().return_value
                return outcome
        except WorkerGroupError as error:
            for why in error.worker_failures.values():
                if isinstance(why, TrainingFailed):
                    return Outcome(CellResult("failed", str(why)), {})
    return Outcome(given_up(job.context.workers), {})


def _trainer(job: Job, board: Any, share: Share, folder: str) -> Any:
    resources = {"CPU": share.cpus, "GPU": share.gpus}
    work: Any = _work  # Ray Train's types do not know return values yet
    return TorchTrainer(
        work,
        train_loop_config={"job": job, "board": board},
        scaling_config=ScalingConfig(
            num_workers=job.context.workers,
            use_gpu=share.gpus > 0,
            resources_per_worker=resources,
        ),
        torch_config=TorchConfig(
            backend="nccl" if share.gpus else "gloo",
            timeout_s=int(PATIENCE.total_seconds()),
        ),
        # Ray Train would also retry errors of the task; the loop above does not.
        run_config=RunConfig(
            storage_path=folder, failure_config=FailureConfig(max_failures=0)
        ),
    )


def _work(config: dict[str, Any]) -> Outcome:
    """Runs in each worker; Ray Train returns the value of rank 0."""
    job, board = config["job"], config["board"]

    def progress(*now: Any) -> None:
        board.note.remote(job.cell.id, *now)

    return train_anywhere(job, progress, _train)


def _train(cell: Cell, context: RunContext, progress: OnProgress) -> CellResult:
    return train_or_raise(train_as_worker, cell, context, progress) or CellResult()
