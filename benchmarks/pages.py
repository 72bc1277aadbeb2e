"""Writes the numbers of benchmarks/results into the documentation pages.

    python benchmarks/pages.py

Each table is between ``<!-- results: NAME -->`` and ``<!-- /results -->``.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import records
import report
import windows

ROOT = records.RESULTS.parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(DOCS / f"{n}.md" for n in ("scaling", "speed", "merging", "teachers", "doctor")),
    DOCS / "choosing.md",
]
NAMES = {
    "resnet50": "ResNet-50",
    "deit_s": "DeiT-S",
    "efficientnet_b0": "EfficientNet-B0",
    "gpt": "GPT-2 small by shape",
    "many_small": "2,000 tensors of 64",
}
VIEWS = {
    "switch": "Switch: copy the average into the live weights",
    "averaged": "Averaged: swap the average into the model and out again",
}
TRAININGS = {
    "ResNet-50, batch 256, 100 epochs": ("resnet50", 500_400),
    "DeiT-S, batch 1024, 300 epochs": ("deit_s", 375_300),
}
BYTES_PER_ELEMENT = 12
"""Bytes per element of a float32 update: two reads and a write."""
BANDWIDTH = 2e12
"""Memory bandwidth of the GPU that the page assumes, in bytes per second."""

GIANT_PARAMETERS = 8.03e9
GIANT_GPUS = 64
GIANT_STEP = 6 * GIANT_PARAMETERS * 4e6 / (GIANT_GPUS * 400e12)
"""Seconds of a step of 4 M tokens at 400 TFLOP/s per GPU, 6 operations each."""
LINK = 25e9
"""Bytes per second between a GPU and its host."""

Results = dict[str, Any]


def table(header: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def update(results: Results) -> str:
    rows = []
    for name, model in results["models"].items():
        ms, elements = update_ms(results, name), model["averaged_elements"]
        per_element = f"{ms * 1e6 / elements:.2f} ns"
        rows.append(
            [NAMES[name], f"{elements / 1e6:.1f} M", f"{ms:.2f} ms", per_element]
        )
    header = ["model", "averaged elements", "one update", "per element and step"]
    return f"{table(header, rows)}\n\n{where(results)}"


def training(results: Results) -> str:
    rows = []
    for training, (name, steps) in TRAININGS.items():
        elements = results["models"][name]["averaged_elements"]
        moved = elements * BYTES_PER_ELEMENT
        seconds = moved / BANDWIDTH
        rows.append(
            [
                training,
                f"{steps:,}",
                f"{update_ms(results, name) * steps / 60e3:.0f} min",
                f"{moved / 1e6:.0f} MB",
                f"{seconds * 1e3:.2f} ms, {seconds * steps:.0f} s in all",
            ]
        )
    return table(
        [
            "training",
            "steps",
            f"on those {results['machine']['cores']} cores",
            "bytes per update",
            "on a GPU with 2 TB/s",
        ],
        rows,
    )


def peers(results: Results) -> str:
    sheet = next(report.sheets(results))
    header = ["", *(NAMES[name] for name in sheet.columns[1:])]
    return f"{table(header, sheet.rows)}\n\n{report.conditions(results)}"


def views(results: Results) -> str:
    """Switch and averaged view, without those who have neither, and an epoch."""
    blocks = []
    for operation, title in VIEWS.items():
        columns = [model[operation] for model in results["models"].values()]
        rows = [
            [
                name,
                *(f"{c[name]['ratio']:.2f} ({c[name]['ms']:.2f} ms)" for c in columns),
            ]
            for name in columns[0]
        ]
        header = ["", *(NAMES[name] for name in results["models"])]
        blocks.append(f"**{title}**\n\n{table(header, rows)}")
    plain, ours = results["epoch"].values()
    blocks.append(
        f"One epoch of the mnist1d CNN in the same run: {ours['ratio']:.3f} times the "
        f"plain one ({plain['ms']:.1f} and {ours['ms']:.1f} ms). Processor time of one "
        f"thread, medians of interleaved repeats on a machine with other work. "
        f"{where(results)}"
    )
    return "\n\n".join(blocks)


def fused(results: Results) -> str:
    rows = []
    for model, optimizers in results["models"].items():
        for optimizer, timings in optimizers.items():
            cells = [f"{t['ratio']:.2f} ({t['ms']:.1f} ms)" for t in timings.values()]
            rows.append([f"{NAMES[model]}, {optimizer}", *cells])
    (first, *_) = results["models"].values()
    (timings, *_) = first.values()
    return f"{table(['', *timings], rows)}\n\n{where(results)}"


def epochs(results: Results) -> str:
    rows = [
        [case, *(f"{t['ratio']:.3f} ({t['ms']:.0f} ms)" for t in timings.values())]
        for case, timings in results["trainings"].items()
    ]
    return f"{table(['', 'plain', 'with Switch EMA'], rows)}\n\n{where(results)}"


def images(results: Results) -> str:
    rows = []
    for case, found in results["measured"].items():
        plain, ours = (found[name] for name in ("plain", "switch-ema"))
        low, high = ours["quartiles"]
        digits = 0 if ours["images per second"] > 100 else 2
        rates = [f"{one['images per second']:,.{digits}f}" for one in (plain, ours)]
        rows.append([case, *rates, f"{ours['ratio']:.3f} ({low:.3f} to {high:.3f})"])
    header = ["images per processor second", "plain", "switch-ema", "time, ratio"]
    return (
        f"{table(header, rows)}\n\nOne thread in the training process, medians over "
        f"the quieter half of {results['repeats']} interleaved repeats, quartiles in "
        "brackets. "
        f"{where(results)}"
    )


def distributed(results: Results) -> str:
    rows = []
    for model, wrappers in results["models"].items():
        for wrapper, measured in wrappers.items():
            for name in ("update", "switch", "averaged"):
                one = measured["operations"][name]
                rows.append(
                    [
                        f"{NAMES[model]}, {wrapper}, {name}",
                        f"{measured['elements_per_rank'] / 1e6:.1f} M",
                        f"{one['ms']:.1f} ms",
                        f"{one['of_plain_step']:.1%}",
                        f"{one['of_flat_lerp']:.2f}",
                        str(one["collectives"]),
                    ]
                )
    header = ["", "elements per rank", "time", "of a plain step", "of a flat `lerp_`"]
    return f"{table([*header, 'collectives'], rows)}\n\n{where(results)}"


def precision(results: Results) -> str:
    (cases,) = results["models"].values()
    (name,) = results["models"]
    rows = [
        [
            case,
            f"{measured['shadow_bytes'] / 1e6:.0f} MB",
            f"{measured['update']['ms']:.1f} ms",
            f"{measured['update']['ratio']:.2f}",
        ]
        for case, measured in cases.items()
    ]
    costs = table([NAMES[name], "shadow", "one update", "against float32"], rows)
    rows = [
        [path, *(f"{error:.2%}" for error in errors.values())]
        for path, errors in results["accuracy"].items()
    ]
    header = ["live weights", "bfloat16 shadow", "its worst tensor", "plain rounding"]
    return f"{costs}\n\n{where(results)}\n\n{table(header, rows)}"


def cluster(results: Results) -> str:
    columns = {"seconds for all": "cells", "in a cell": "within", "beside": "beside"}
    columns |= {"start, once": "start", "load before": "load"}
    rows = [
        [workers, *(f"{middle(runs, field):.2f}" for field in columns.values())]
        for workers, runs in results["runs"].items()
    ]
    ratios = results["ratios"]
    sentence = (
        f"Two workers were {ratios['speed']:.2f} times as fast as one on "
        f"{results['cells']} cells; "
        f"{ratios['allowed_by_the_cells']:.2f} is what the time in the cells allows."
    )
    return f"{table(['workers', *columns], rows)}\n\n{sentence} {where(results)}"


def merge(results: Results) -> str:
    ratios = {"cp of all": "of_cp", "read all, write one": "of_the_least"}
    rows = [
        [
            name,
            f"{seconds:.1f}",
            f"{results[ratios[name]]:.2f}" if name in ratios else "",
        ]
        for name, seconds in results["seconds"].items()
    ]
    mega = {
        name: f"{results[name] / 1e6:.0f} MB"
        for name in ("bytes", "peak_bytes", "largest_tensor_bytes")
    }
    sentence = (
        f"{results['checkpoints']} checkpoints of {mega['bytes']} in float32, medians "
        f"of {results['repeats']} interleaved repeats; the merge has two threads. It "
        f"took {mega['peak_bytes']} of memory beyond its start; the largest tensor has "
        f"{mega['largest_tensor_bytes']}."
    )
    header = ["", "seconds", "the merge against it"]
    return f"{table(header, rows)}\n\n{sentence} {where(results)}"


def teacher(results: Results) -> str:
    rows = [
        [f"{NAMES[model]}, {call}", f"{timing['ms']:.1f} ms", f"{timing['ratio']:.3f}"]
        for model, timings in results["models"].items()
        for call, timing in timings.items()
    ]
    sentence = (
        f"{results['batch']} images of 224 x 224, medians of {results['repeats']} "
        "interleaved repeats, of the half with the lower load; one thread."
    )
    header = ["", "forward pass", "against the model's own"]
    return f"{table(header, rows)}\n\n{sentence} {where(results)}"


def slicing(results: Results) -> str:
    header = [f"{results['layers']} layers", *next(iter(results["models"].values()))]
    rows = [
        [model, *(f"{microseconds / 1e3:.2f} ms" for microseconds in times.values())]
        for model, times in results["models"].items()
    ]
    sentence = (
        f"Processor time of an update, one thread, medians of {results['repeats']} "
        "interleaved repeats."
    )
    return f"{table(header, rows)}\n\n{sentence} {where(results)}"


def large(results: Results) -> str:
    rows = []
    for call, timing in results["timings"].items():
        cells = [f"{timing['ms']:.1f} ms", f"{timing['ratio']:.2%}"]
        cells += [
            f"{results[field][call] / 1e6:.0f} MB" if call in results[field] else ""
            for field in ("held_bytes", "peak_bytes")
        ]
        rows.append([f"`{call}`" if "=" in call else call, *cells])
    sentence = (
        f"{results['parameters'] / 1e6:.1f} M parameters, "
        f"{results['bytes_per_rank'] / 1e6:.0f} MB of weights per rank, "
        f"{results['tokens']} tokens per rank and step, AdamW; medians of "
        f"{results['repeats']} interleaved repeats, of the half with the lower load; "
        "one thread per process."
    )
    header = ["", "time", "of a plain step", "memory", "more at most"]
    return f"{table(header, rows)}\n\n{sentence} {where(results)}"


def eight_billion(results: Results) -> str:
    """Estimate for a model and a cluster that were not run."""
    elements = GIANT_PARAMETERS / GIANT_GPUS
    rows = []
    for name, held, moved in (
        ("float32 shadow", 4, BYTES_PER_ELEMENT),
        ("bfloat16 shadow", 2, 8),
        ("pseudo-optimizer in float32", 4, BYTES_PER_ELEMENT),
    ):
        ms = elements * moved / BANDWIDTH * 1e3
        share = ms / 1e3 / GIANT_STEP
        rows.append([name, *cells_of(elements, held, moved, ms), f"{share:.3%}"])
    copied = elements * 4 / LINK * 1e3
    measured = results["models"]["gpt"]["averaged_elements"]
    core = update_ms(results, "gpt") * elements / measured
    rows.append(
        [
            "offloaded, every step",
            "0 MB",
            f"{elements * 4 / 1e9:.2f} GB over the bus",
            f"{copied:.0f} ms, and {core:.0f} ms on the CPU",
            f"{copied / 1e3 / GIANT_STEP:.2%}, unless hidden",
        ]
    )
    whole = GIANT_PARAMETERS * 4 / 1e9
    rows.append(["a second, unsharded model", f"{whole:.0f} GB", "", "", ""])
    header = ["8 B on 64 GPUs", "per GPU", "bytes moved", "one update", "of a step"]
    return table(header, rows)


def cells_of(elements: float, held: int, moved: int, ms: float) -> list[str]:
    size = f"{elements * held / 1e6:.0f} MB"
    return [size, f"{elements * moved / 1e9:.2f} GB", f"{ms:.2f} ms"]


SHOWN = {
    windows.AUTO: "auto",
    "fraction(0.02)": "fraction(0.02)",
    "fraction(0.05)": "fraction(0.05)",
    "fraction(0.2)": "fraction(0.2)",
    windows.LIVE: "live weights",
    "0.1, follows to 0.2": "follows the rate",
    windows.CHOICE: "choice",
}
"""Windows in the tables of choosing.md, and their names there."""


def window_regrets(results: Results) -> str:
    """Regret by setting, with 97% intervals."""
    scores = results["fresh"]["scores"]
    reference = windows.references(results["pilot"]["scores"])
    columns = [windows.regrets(scores, reference, window) for window in SHOWN]
    rows = [
        [setting, reference[setting], *map(spread, cells)]
        for setting, *cells in zip(scores, *columns, strict=True)
    ]
    return table(["setting", "reference", *SHOWN.values()], rows)


def window_means(results: Results) -> str:
    """Mean regrets over settings, and gains over auto, with 97% intervals."""
    scores = results["fresh"]["scores"]
    reference = windows.references(results["pilot"]["scores"])
    auto = dict.fromkeys(scores, windows.AUTO)
    steady = {s: v for s, v in scores.items() if windows.SETTINGS[s].is_steady}
    changed = {s: v for s, v in scores.items() if s not in steady}
    rows = []
    for window in scores[next(iter(scores))]:
        cells = [
            spread(by_seed(windows.regrets(steady, reference, window))),
            f"{windows.summary(scores, reference, window)[2]:.2f}",
            spread(by_seed(windows.regrets(changed, reference, window))),
        ]
        if window == windows.AUTO:
            cells += ["", ""]
        else:
            behind = windows.regrets(scores, auto, window)
            ends = [windows.interval(regret) for regret in behind]
            better = sum(mean + half < 0 for mean, half in ends)
            worse = sum(mean - half > 0 for mean, half in ends)
            gain = [-mean for mean in by_seed(windows.regrets(steady, auto, window))]
            cells += [spread(gain, "+"), f"{better}, {worse}"]
        rows.append([SHOWN.get(window, window), *cells])
    header = [
        "window",
        f"mean regret, {len(steady)} steady settings",
        "the largest",
        f"mean regret, {len(changed)} with changed data",
        "gain over auto, steady",
        f"better, worse than auto, of {len(scores)}",
    ]
    n, first = len(results["fresh"]["seeds"]), results["fresh"]["seeds"][0]
    seeds = f"n = {n} seeds from {first} on, 97% intervals over seeds."
    return f"{table(header, rows)}\n\n{seeds} {where(results)}"


def restarts(results: Results) -> str:
    """Regret after a sudden change of the data, with and without restart()."""
    reference = windows.references(results["pilot"]["scores"])
    every = results["fresh"]["scores"]
    scores = {s: of for s, of in every.items() if windows.RESTARTED in of}
    names = {windows.AUTO: "auto", windows.RESTARTED: "auto, restarted"}
    names |= {name: SHOWN[name] for name in (windows.LIVE, windows.CHOICE)}
    columns = [windows.regrets(scores, reference, name) for name in names]
    rows = [
        [setting, *map(spread, cells)]
        for setting, *cells in zip(scores, *columns, strict=True)
    ]
    return table(["regret", *names.values()], rows)


def by_seed(regrets: list[list[float]]) -> list[float]:
    """Return each seed's mean over the settings."""
    return [statistics.fmean(values) for values in zip(*regrets, strict=True)]


def held_out(results: Results) -> str:
    """Cost and gain of Best, and of training again on all data."""
    rows = []
    for task, found in results["tasks"].items():
        whole = found["all data"]
        for variant, values in found.items():
            if variant == "all data" or variant.startswith("epoch"):
                continue
            pairs = zip(values, whole, strict=True)
            gain = spread([own - other for own, other in pairs], "+")
            rows.append([task, variant, f"{statistics.fmean(whole):.2f}", gain])
    header = ["task", "variant", "EMA on all data, last epoch", "difference from it"]
    n, first = len(results["seeds"]), results["seeds"][0]
    seeds = f"n = {n} seeds from {first} on, {results['epochs']} epochs."
    return f"{table(header, rows)}\n\n{seeds} {where(results)}"


def spread(values: Sequence[float], sign: str = "") -> str:
    mean, half = windows.interval(values)
    return f"{mean:{sign}.2f} ± {half:.2f}"


def middle(runs: list[dict[str, float]], field: str) -> float:
    return statistics.median(run[field] for run in runs)


def update_ms(results: Results, model: str) -> float:
    found = results["models"][model]["operations"]["update"]["SwitchEMA"]["ms"]
    return float(found)


def where(results: Results) -> str:
    machine = results["machine"]
    load = f", load {machine['load']:.1f} before" if "load" in machine else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores{load}, torch {machine['torch']}, "
        f"{results['date'][:10]}."
    )


def audit(results: Results) -> str:
    rows = []
    for name, found in results["audits"].items():
        timing, inside = found["with audit"], found["inside"]
        low, high = timing["quartiles"]
        rows.append(
            [
                name,
                f"{timing['ms'] / 50:.0f} ms",
                f"{timing['ratio']:.4f} ({low:.4f} to {high:.4f})",
                f"{inside['check_ms']:.2f} ms",
                f"{inside['share']:.3%}",
                f"{inside['first_steps_ms']:.0f} ms",
            ]
        )
    header = [
        "training",
        "step",
        "with audit / without (quartiles)",
        "in the audit, per 50 steps",
        "share",
        "in the first 75 steps",
    ]
    return f"{table(header, rows)}\n\n{where(results)}"


BLOCKS: dict[str, tuple[str, Callable[[Results], str]]] = {
    "peers": ("averaging", peers),
    "views": ("switching", views),
    "fused": ("fused", fused),
    "epochs": ("training", epochs),
    "input": ("input", images),
    "update": ("averaging", update),
    "training": ("averaging", training),
    "distributed": ("distributed", distributed),
    "precision": ("precision", precision),
    "cluster": ("cluster", cluster),
    "merge": ("merge", merge),
    "teacher": ("teacher", teacher),
    "large": ("large", large),
    "slicing": ("slicing", slicing),
    "audit": ("audit", audit),
    "eight_billion": ("averaging", eight_billion),
    "windows": ("windows", window_regrets),
    "window_means": ("windows", window_means),
    "restarts": ("windows", restarts),
    "held_out": ("best", held_out),
}


def render(page: str, folder: Path) -> str:
    """Return the page with the numbers of the folder."""

    def fill(match: re.Match[str]) -> str:
        file, block = BLOCKS[match[2]]
        results = json.loads((folder / f"{file}.json").read_text())
        return f"{match[1]}\n\n{block(results)}\n\n{match[3]}"

    block = r"(<!-- results: (\w+) -->).*?(<!-- /results -->)"
    return re.sub(block, fill, page, flags=re.DOTALL)


def main() -> int:
    for page in PAGES:
        page.write_text(render(page.read_text(), records.RESULTS))
        print(f"Written to {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
