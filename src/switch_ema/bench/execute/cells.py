"""Trains cells with the chosen executor."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.local import OnEpoch, Pool, train_or_explain
from switch_ema.bench.execute.options import launched
from switch_ema.bench.execute.placement import default_jobs, found_gpus, place
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.spec import is_script
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import check_divisible
from switch_ema.bench.train.result import CellResult


def train_cells(
    cells: Sequence[Cell],
    context_of: Callable[[Cell], RunContext],
    jobs: int,
    on_epoch: OnEpoch,
    *,
    executor: str = "local",
    address: str | None = None,
    slurm: Sequence[str] = (),
    timeout: float | None = None,
) -> Iterator[tuple[Cell, CellResult]]:
    """Yield each cell with its result as it finishes; failures are results, too.

    Args:
        cells: the cells to train.
        context_of: returns the run context of a cell.
        jobs: cells to train at once; 0 for as many as fit, or one script.
        on_epoch: called with a cell, its finished epochs, and its latest value.
        executor: ``local`` for worker processes, ``ray`` or ``slurm`` for a cluster,
            ``inline`` for this process, for example under a debugger.
        address: address of the Ray cluster; see :func:`ray.init`.
        slurm: options of the Slurm jobs, as ``name=value``.
        timeout: seconds without a finished epoch after which a local training fails.
    """
    if not cells:
        return
    workers = context_of(cells[0]).workers
    if is_script(cells[0].task):
        if executor in ("ray", "slurm"):
            cluster = executor.capitalize()
            raise UsageError(f"a script runs on this machine, not on {cluster}.")
        if workers > 1:
            raise UsageError(
                "--workers-per-training does not apply to a script; instead, "
                "put torchrun into its command."
            )
        jobs = jobs or 1  # a command may use the whole machine
        workers = max(1, len(found_gpus(context_of(cells[0]).device)) // jobs)
    elif workers > 1:
        for cell in cells:
            check_divisible(cell)
    if executor == "ray":
        # Imported here: Ray is an optional extra and slow to import.
        from switch_ema.bench.execute.ray import train_on_ray

        yield from train_on_ray(cells, context_of, jobs, on_epoch, address=address)
        return
    if executor == "slurm":
        # Imported here: submitit is an optional extra.
        from switch_ema.bench.execute.slurm import train_on_slurm

        yield from train_on_slurm(cells, context_of, jobs, on_epoch, slurm)
        return
    if executor == "inline":
        for cell in cells:
            yield (
                cell,
                train_or_explain(cell, context_of(cell), partial(on_epoch, cell)),
            )
        return
    if launched()[1] > 1:
        from switch_ema.bench.execute.torchrun import train_launched

        yield from train_launched(cells, context_of, on_epoch)
        return
    gpus = found_gpus(context_of(cells[0]).device)
    jobs = min(jobs or default_jobs(gpus, workers), len(cells))
    # Even a single job gets a process, so a crash does not end the comparison.
    with Pool(place(gpus, jobs, workers), timeout) as pool:
        yield from pool.run(cells, context_of, on_epoch)
