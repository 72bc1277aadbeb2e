"""An update, a switch and averaged() under DDP and FSDP2, against a plain step.

    python benchmarks/distributed.py [--models deit_s resnet50] [--repeats 12]

Two gloo processes on this machine. The tables show rank 0's times of a training step
without averaging, the same step with it, each operation alone, and one flat ``lerp_``
over the elements that a rank averages, all interleaved. Collectives are counted in the
same run.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import models
import records
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from timing import Repeats, interleave, summarize
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from switch_ema import SwitchEMA, constant

WORLD = 2
DECAY = 0.999
PLAIN = "plain step"
FLAT = "one flat lerp_"

Call = Callable[[], object]


def tiny() -> nn.Module:
    """Return the smallest model with weights and statistics."""
    body = nn.Conv2d(3, 4, 8, stride=8), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(4, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "deit_s": partial(models.build, "deit_s"),
    "resnet50": partial(models.build, "resnet50"),
    "tiny": tiny,
}


def shard(model: nn.Module) -> nn.Module:
    """Shard the blocks one by one, and the rest with the model."""
    for part in model.children():
        if isinstance(part, nn.Sequential):
            fully_shard(part)
    fully_shard(model)
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DDP": DistributedDataParallel,
    "FSDP2": shard,
}


def stepper(model: nn.Module, batch: int, averages: bool) -> Call:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if averages:
        SwitchEMA(model, optimizer, decay=constant(DECAY))
    images = torch.randn(batch, 3, 224, 224)
    labels = torch.randint(10, (batch,))

    def step() -> None:
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def local_elements(model: nn.Module) -> int:
    """Count the elements that one rank averages."""
    tensors = [
        tensor.to_local() if isinstance(tensor, DTensor) else tensor
        for tensor in models.tensors(model)
    ]
    return sum(t.numel() for t in tensors if t.is_floating_point())


def contestants(name: str, wrapper: str, batch: int) -> tuple[dict[str, Call], int]:
    plain, trained, resting = (WRAPPERS[wrapper](MODELS[name]()) for _ in range(3))
    sema = SwitchEMA(resting, decay=constant(DECAY))
    elements = local_elements(resting)
    live, shadow = torch.randn(2, elements)

    def averaged() -> None:
        with sema.averaged():
            pass

    calls: dict[str, Call] = {
        PLAIN: stepper(plain, batch, averages=False),
        "step with Switch EMA": stepper(trained, batch, averages=True),
        FLAT: lambda: shadow.lerp_(live, 1 - DECAY),
        "update": sema.update,
        "switch": sema.switch,
        "averaged": averaged,
    }
    return calls, elements


class Collectives(TorchDispatchMode):
    """Counts calls of collectives of all kinds.

    Like torch's CommDebugMode, but without its module hooks, which break networks with
    in-place activations.
    """

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # to see what it is made of
        is_one = func.namespace in ("c10d", "c10d_functional", "_c10d_functional")
        self.count += is_one and "wait" not in func.name()
        return func(*args, **(kwargs or {}))


def count_collectives(calls: dict[str, Call]) -> dict[str, int]:
    """Count the collectives of one call of each operation."""
    counts = {}
    for name, call in calls.items():
        with Collectives() as watch:
            call()
        counts[name] = watch.count
    if not counts[PLAIN]:
        raise RuntimeError(
            "No collective was seen in a training step, so the counts are invalid."
        )
    return counts


def measure(name: str, wrapper: str, batch: int, repeats: int) -> dict[str, Any]:
    calls, elements = contestants(name, wrapper, batch)
    counts = count_collectives(calls)
    into = Repeats()
    interleave(calls, repeats, into, lambda: None)
    steps, lerps = summarize(into, PLAIN), summarize(into, FLAT)
    return {
        "elements_per_rank": elements,
        "operations": {
            call: {
                "ms": steps[call].ms,
                "of_plain_step": steps[call].ratio,
                "of_flat_lerp": lerps[call].ratio,
                "collectives": counts[call],
            }
            for call in calls
        },
    }


def work(rank: int, folder: str, arguments: argparse.Namespace) -> None:
    """Measure on one rank; rank 0 writes the results to the folder."""
    torch.set_num_threads(arguments.threads)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(minutes=5),
    )
    results = records.describe_run() | {
        "world": WORLD,
        "batch_per_rank": arguments.batch,
        "repeats": arguments.repeats,
    }
    results["models"] = {
        name: {
            wrapper: measure(name, wrapper, arguments.batch, arguments.repeats)
            for wrapper in WRAPPERS
        }
        for name in arguments.models
    }
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def show(results: dict[str, Any], console: Console) -> None:
    table = Table("model", "", "operation")
    for column in ("ms", "of a plain step", "of a flat lerp_", "collectives"):
        table.add_column(column, justify="right")
    for model, wrappers in results["models"].items():
        for wrapper, measured in wrappers.items():
            for name, operation in measured["operations"].items():
                table.add_row(
                    model,
                    wrapper,
                    name,
                    f"{operation['ms']:.2f}",
                    f"{operation['of_plain_step']:.3f}",
                    f"{operation['of_flat_lerp']:.2f}",
                    str(operation["collectives"]),
                )
            table.add_section()
    console.print(table)
    batch = results["batch_per_rank"]
    console.print(f"{WORLD} processes, {batch} images of 224 x 224 per rank and step.")
    console.print(records.conditions(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = ["deit_s", "resnet50"]
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=default)
    parser.add_argument("--batch", type=int, default=2, help="images per rank")
    parser.add_argument("--threads", type=int, default=1, help="of torch, per rank")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument(
        "--json", type=Path, default=records.RESULTS / "distributed.json"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Fork both ranks from one process that has done the imports.
        start_processes(
            work, (folder, arguments), nprocs=WORLD, start_method="forkserver"
        )
        results = json.loads((Path(folder) / "results.json").read_text())
    records.write(results, arguments.json)
    show(results, Console(width=120))


if __name__ == "__main__":
    main()
