"""Memory and time of an average for a 124 M parameter GPT under FSDP2.

    python benchmarks/large.py [--model gpt] [--tokens 32] [--repeats 6]

Two gloo processes on this machine, sharded layer by layer, AdamW. Interleaved on each
rank: a plain training step, one update of each kind of average, and a hand-written
pseudo-optimizer whose state is the average, as in torchtitan. Memory is what rank 0's
allocator hands out while an average is made and updated twice: the amount kept, and the
peak beyond it.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import models
import records
import torch
import torch.distributed as dist
from memory import watch
from rich.console import Console
from rich.table import Table
from timing import Repeats, interleave, summarize
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes

from switch_ema import EMA, constant

WORLD = 2
DECAY = 0.999
PLAIN = "plain step"
PSEUDO = "pseudo-optimizer"

Call = Callable[[], object]


class GPT(nn.Module):
    """The tensors of ``models.gpt`` with a forward pass."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, tokens: Tensor) -> Tensor:
        body = self.body
        positions = torch.arange(tokens.shape[1])
        x = body.tokens(tokens) + body.positions(positions)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in body.blocks:
            # Its layers expect the sequence first.
            x = block(x.transpose(0, 1), src_mask=mask).transpose(0, 1)
        logits: Tensor = body.head(body.norm(x))
        return logits


class PseudoOptimizer(torch.optim.Optimizer):
    """Keeps the average as optimizer state, to be saved like one."""

    def __init__(self, params: Any, decay: float) -> None:
        super().__init__(params, {"decay": decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["average"] = parameter.detach().clone()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            averages = [self.state[p]["average"] for p in group["params"]]
            torch._foreach_lerp_(averages, group["params"], 1 - group["decay"])


KINDS: dict[str, Callable[[nn.Module], Call]] = {
    "float32": lambda model: EMA(model, decay=constant(DECAY)).update,
    "bfloat16": lambda model: (
        EMA(model, decay=constant(DECAY), dtype=torch.bfloat16).update
    ),
    'device="cpu"': lambda model: (
        EMA(model, decay=constant(DECAY), device="cpu").update
    ),
    PSEUDO: lambda model: PseudoOptimizer(model.parameters(), DECAY).step,
}


def build(name: str) -> nn.Module:
    model = GPT(models.build(name))
    for block in model.body.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def stepper(model: nn.Module, vocabulary: int, tokens: int) -> Call:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randint(vocabulary, (1, tokens + 1))

    def step() -> None:
        logits = model(batch[:, :-1])
        nn.functional.cross_entropy(logits[0], batch[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def held_and_peak(make: Callable[[nn.Module], Call], model: nn.Module) -> list[int]:
    """Return the memory that an average keeps, and its peak beyond that."""
    kept = []

    def run() -> None:
        kept.append(make(model))
        kept[0]()
        kept[0]()  # for some the first update is just a copy

    peak, held = watch(run)
    return [held, peak - held]


def measure(name: str, tokens: int, repeats: int) -> dict[str, Any]:
    model = build(name)
    # All averages share one model, so their order does not matter.
    calls = {PLAIN: stepper(model, model.body.tokens.num_embeddings, tokens)}
    calls[PLAIN]()  # creates AdamW's state and FSDP2's buffers
    taken = {kind: held_and_peak(make, model) for kind, make in KINDS.items()}
    calls |= {kind: make(model) for kind, make in KINDS.items()}
    into = Repeats()
    interleave(calls, repeats, into, lambda: None)
    timings = summarize(into, PLAIN)
    local = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes_per_rank": sum(p.nbytes for p in local),
        "timings": {call: asdict(timing) for call, timing in timings.items()},
        "held_bytes": {kind: held for kind, (held, _) in taken.items()},
        "peak_bytes": {kind: peak for kind, (_, peak) in taken.items()},
    }


def work(rank: int, folder: str, arguments: argparse.Namespace) -> None:
    """Measure on one rank; rank 0 writes the results to the folder."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(minutes=5),
    )
    results = records.describe_run() | {
        "world": WORLD,
        "tokens": arguments.tokens,
        "repeats": arguments.repeats,
    }
    results |= measure(arguments.model, arguments.tokens, arguments.repeats)
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def show(results: dict[str, Any], console: Console) -> None:
    table = Table("", "ms", "of a plain step", "memory", "more at most")
    for call, timing in results["timings"].items():
        cells = [f"{timing['ms']:.1f}", f"{timing['ratio']:.4f}"]
        if call in results["held_bytes"]:
            cells += [
                f"{results[field][call] / 1e6:.0f} MB"
                for field in ("held_bytes", "peak_bytes")
            ]
        table.add_row(call, *cells)
    console.print(table)
    console.print(
        f"{results['parameters'] / 1e6:.1f} M parameters over {WORLD} processes, "
        f"{results['bytes_per_rank'] / 1e6:.0f} MB of weights per rank, "
        f"{results['tokens']} tokens per rank and step."
    )
    console.print(records.conditions(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=["gpt", "gpt_tiny"], default="gpt")
    parser.add_argument("--tokens", type=int, default=32, help="per rank and step")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--json", type=Path, default=records.RESULTS / "large.json")
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
