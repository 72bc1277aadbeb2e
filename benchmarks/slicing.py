"""An update after a forward pass that creates modules by slicing a ModuleList.

    python benchmarks/slicing.py [--layers 32] [--repeats 100]

Llama in Transformers runs over ``self.layers[:n]``, a new ModuleList at each step.
Its update is compared with that of a copy whose slices are plain lists. Processor time
of ``update()`` alone, one thread; both are called in turn, after a forward pass each.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import records
import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from switch_ema import SwitchEMA

MODULES = "slices are modules"
LISTS = "slices are lists"


class ListSlices(nn.ModuleList):
    """A ModuleList whose slices are plain lists."""

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index] if isinstance(index, slice) else super()[index]


def llama(layers: int, lora: bool, slices: str) -> nn.Module:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 128}
    heads = {"num_attention_heads": 4, "num_hidden_layers": layers}
    model: Any = LlamaForCausalLM(LlamaConfig(**shape, **heads))
    if lora:
        model = get_peft_model(model, LoraConfig(target_modules="all-linear"))
    if slices == LISTS:
        for module in list(model.modules()):
            if isinstance(getattr(module, "layers", None), nn.ModuleList):
                module.layers = ListSlices(module.layers)
    return model  # type: ignore[no-any-return]


def measure(layers: int, lora: bool, repeats: int) -> dict[str, float]:
    """Return the median microseconds of an update in each case."""
    models = {case: llama(layers, lora, case) for case in (LISTS, MODULES)}
    averagers = {case: SwitchEMA(model) for case, model in models.items()}
    times: dict[str, list[float]] = {case: [] for case in models}
    tokens = torch.zeros(1, 2, dtype=torch.long)
    for _ in range(repeats + 1):
        for case, model in models.items():
            with torch.no_grad():
                model(tokens)
            began = time.process_time()
            averagers[case].update()
            times[case].append(time.process_time() - began)
    # The first update builds caches for the later ones.
    return {case: statistics.median(all_[1:]) * 1e6 for case, all_ in times.items()}


def show(results: dict[str, Any], console: Console) -> None:
    table = Table("model", *(f"µs, {case}" for case in (LISTS, MODULES)))
    for model, times in results["models"].items():
        table.add_row(model, *(f"{times[case]:.0f}" for case in (LISTS, MODULES)))
    console.print(table)
    console.print(records.conditions(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", type=Path, default=records.RESULTS / "slicing.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = records.describe_run() | {
        "layers": arguments.layers,
        "repeats": arguments.repeats,
    }
    results["models"] = {
        name: measure(arguments.layers, lora, arguments.repeats)
        for name, lora in (("Llama", False), ("Llama, LoRA", True))
    }
    records.write(results, arguments.json)
    show(results, Console(width=120))


if __name__ == "__main__":
    main()
