"""Puts faults into the averages of several libraries, by the libraries' own code.

``python -m tests.doctor.faults --seeds 5`` runs all of them and healthy averages, and
writes how often the doctor named the fault to ``evidence/doctor.json``, from which
``python -m tests.documented_numbers`` computes the figures of docs/doctor.md.
"""

import argparse
import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from switch_ema.doctor.diagnosis import Diagnosis, diagnose
from tests.doctor.averages import (
    DECAY,
    LIBRARIES,
    RECIPES,
    Average,
    Case,
    EMAPytorch,
    Loop,
    MMEngineAnnealing,
    MMEngineSWA,
    OurMethod,
    Ours,
    StateDictLoop,
    TimmV2,
    mlp_with_sgd,
    show,
    trajectory,
    transformer_with_adamw,
)

RESULTS = Path(__file__).parents[2] / "evidence" / "doctor.json"
FIRST_SEED = 2000
"""Thresholds were chosen with smaller seeds."""
STEPS = 50
"""Steps between two checkpoints."""


def _parts(content: dict[str, Any]) -> tuple[str, str]:
    """Return the keys of the live weights and of the average."""
    keys = [key for key in content if isinstance(content[key], dict)]
    average = next(key for key in keys if "ema" in key)
    return next(key for key in keys if key != average), average


def _with_average(
    content: dict[str, Any], values: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Replace the values of the average, in the library's own layout."""
    _, key = _parts(content)
    state = content[key]
    if "shadow_params" in state:
        names = [n for n in values if "running" not in n and "num_batches" not in n]
        state["shadow_params"] = [values[name].clone() for name in names]
        return content
    if "shadow" in state:
        state = state["shadow"]
    for name in state:
        plain = name.removeprefix("module.").removeprefix("ema_model.")
        if plain in values:
            state[name] = values[plain].clone()
    return content


def _own_average(content: dict[str, Any]) -> dict[str, torch.Tensor]:
    live, key = _parts(content)
    state = content[key]
    if "shadow_params" in state:
        names = [
            n for n in content[live] if "running" not in n and "num_batches" not in n
        ]
        own = dict(zip(names, state["shadow_params"], strict=True))
    else:
        state = state.get("shadow", state)
        own = {
            name.removeprefix("module.").removeprefix("ema_model."): value
            for name, value in state.items()
            if isinstance(value, torch.Tensor)
        }
    return content[live] | {n: v for n, v in own.items() if n in content[live]}


# At a step.


def _made_anew(case: Case, step: int) -> bool:
    if step == 235:
        case.average = case.new_average()
    return True


def _without_count(case: Case, step: int) -> bool:
    if step == 235:
        case.average.forget_count()
    return True


def _diverges(case: Case, step: int) -> bool:
    if step >= 220:
        with torch.no_grad():
            list(case.model.parameters())[-1][0] = math.nan
    return True


def _twice(case: Case, step: int) -> bool:
    """Tied weights under two names: one tensor is averaged twice."""
    case.average.update(case.model)
    shadow = case.average.tensors()[-2]
    value = list(case.model.parameters())[-2]
    with torch.no_grad():
        shadow.lerp_(value.detach().to(shadow.dtype), 1 - case.decay)
    return False


def _away(case: Case, step: int) -> bool:
    with torch.no_grad():
        for shadow, value in zip(
            case.average.tensors(), case.model.parameters(), strict=True
        ):
            shadow.sub_((1 - case.decay) / 8 * (value - shadow))
    return False


# What the average follows.


def _copy(case: Case) -> nn.Module:
    """Return a copy from before the training."""
    if not hasattr(case, "copied"):
        case.copied = copy.deepcopy(case.model)
    return case.copied


def _copied_parameters(case: Case) -> nn.Module:
    """Return a copy that gets the parameters, but no buffers."""
    copied = _copy(case)
    for own, value in zip(copied.parameters(), case.model.parameters(), strict=True):
        own.data.copy_(value.data)
    return copied


def _copied_in_part(case: Case) -> nn.Module:
    """Return a copy that gets all but the last two parameters."""
    copied = _copy(case)
    pairs = list(zip(copied.parameters(), case.model.parameters(), strict=True))
    for own, value in pairs[:-2]:
        own.data.copy_(value.data)
    for own, value in zip(copied.buffers(), case.model.buffers(), strict=True):
        own.copy_(value)
    return copied


def _in(dtype: torch.dtype) -> Callable[[Case], nn.Module]:
    return lambda case: copy.deepcopy(case.model).to(dtype)


def _another_run(case: Case) -> nn.Module:
    """Return a model of the same kind that another training changes."""
    known = trajectory(case.recipe, case.seed + 500, case.cosine)
    if not case.at:
        case.other = copy.deepcopy(known.model)
    else:
        show(case.other, known.states[case.at - 1])
    return case.other


# When a checkpoint is saved.


def _exchange(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    live, _ = _parts(content)
    own, real = _own_average(content), content[live]
    content = _with_average(content, real)
    content[live] = own
    return content


def _prefixed(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    live, _ = _parts(content)
    content[live] = {f"backbone.{n}": v for n, v in content[live].items()}
    return content


def _noise(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    torch.manual_seed(10 * case.seed + step)
    own = {n: torch.randn_like(v.float()) for n, v in _own_average(content).items()}
    return _with_average(content, own)


def _live_for_average(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    live, _ = _parts(content)
    return _with_average(content, content[live])


def _average_for_live(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    live, _ = _parts(content)
    content[live] = {n: v.clone() for n, v in _own_average(content).items()}
    return content


def _kept_average(case: Case, content: dict[str, Any], step: int) -> dict[str, Any]:
    """Save the average of the first checkpoint again and again."""
    if not hasattr(case, "kept"):
        case.kept = copy.deepcopy(content)
    live, _ = _parts(content)
    return copy.deepcopy(case.kept) | {live: content[live]}


OTHERS = tuple(name for name in LIBRARIES if name != "switch-ema")
NAMED = ("torch AveragedModel", "timm", "ema-pytorch", "MMEngine", "switch-ema",
         "plain loop")  # fmt: skip
"""Libraries that store names and buffers."""
COUNTING = tuple(name for name in LIBRARIES if name != "timm")
"""Libraries whose checkpoints count the updates."""


@dataclass(frozen=True)
class Fault:
    """A fault, and what the doctor should say."""

    expected: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the ``Case``."""
    libraries: tuple[str, ...] = tuple(LIBRARIES)
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the user tells the doctor."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of each library."""
    needs_norm: bool = False


RATE = {"decay": DECAY, "steps": STEPS}

FAULTS: dict[str, Fault] = {
    # Ours follows the model until its first update.
    "never updated": Fault("frozen", {"before_update": lambda c, s: False}, OTHERS),
    "updates stop": Fault("frozen", {"before_update": lambda c, s: s < 150}),
    "a copy of the model is followed": Fault("frozen", {"follow": _copy}),
    "an old average is saved": Fault("frozen", {"at_save": _kept_average}),
    "a part of the model is followed": Fault(
        "frozen tensors", {"follow": _copied_in_part}
    ),
    "decay inverted": Fault(
        "inverted decay", {"decay": 1 - 0.999}, told={"steps": STEPS}
    ),
    "decay of zero": Fault(
        "equal to live",
        {"decay": 0.0},
        tuple(name for name in LIBRARIES if name != "MMEngine"),  # which refuses it
    ),
    "live saved as average": Fault("equal to live", {"at_save": _live_for_average}),
    "average saved as live": Fault("equal to live", {"at_save": _average_for_live}),
    # Ours never stores the live weights as its average.
    "exchanged": Fault("exchanged", {"at_save": _exchange}, OTHERS),
    # Ours rounds stochastically.
    "bfloat16": Fault(
        "stalled", {"follow": _in(torch.bfloat16), "decay": 0.999}, OTHERS
    ),
    "float16": Fault(
        "stalled", {"follow": _in(torch.float16), "decay": 0.9999}, OTHERS
    ),
    "one tensor twice": Fault("uneven decay", {"before_update": _twice}),
    "updated per micro-batch": Fault("other decay", {"updates": 4}, told=RATE),
    "updated every fourth step": Fault(
        "other decay", {"before_update": lambda c, s: s % 4 == 0}, told=RATE
    ),
    "another decay than declared": Fault("other decay", {"decay": 0.7}, told=RATE),
    "decay too large": Fault("initial weights", {"decay": 0.9995}, COUNTING),
    "made anew on resuming": Fault("restarted", {"before_update": _made_anew}),
    # Ours is restored with its counter or not at all.
    "warm-up begun again on resuming": Fault(
        "restarted",
        {"before_update": _without_count},
        OTHERS,
        options={
            "timm": {"use_warmup": True},
            "ema-pytorch": {"update_every": 1, "update_after_step": 0},
            "torch_ema": {"use_num_updates": True},
            "diffusers": {"use_ema_warmup": True},
            "plain loop": {"warmup": True},
        },
    ),
    "NaN": Fault("not finite", {"before_update": _diverges}),
    "other names": Fault("names", {"at_save": _prefixed}, NAMED),
    "random values": Fault("not an average", {"at_save": _noise}, OTHERS),
    "another run is followed": Fault("not an average", {"follow": _another_run}),
    "wrong sign": Fault("moving away", {"before_update": _away}, OTHERS),
    "buffers forgotten": Fault(
        "stale buffers", {"follow": _copied_parameters}, NAMED, needs_norm=True
    ),
    "integers averaged": Fault(
        "averaged integers",
        {},
        ("torch AveragedModel", "timm", "plain loop"),  # the others copy them
        options={"torch AveragedModel": {"use_buffers": True}},
        needs_norm=True,
    ),
}

AVERAGING_INTEGERS = {"timm": TimmV2, "plain loop": StateDictLoop}


def examine(name: str, library: str, seed: int, folder: Path) -> Diagnosis:
    """Put a fault into the average of a library, and ask the doctor."""
    fault = FAULTS[name]
    kind = LIBRARIES[library]
    if name == "integers averaged":
        kind = AVERAGING_INTEGERS.get(library, kind)
    recipe = transformer_with_adamw if seed % 2 else mlp_with_sgd
    case = Case(
        kind,
        seed,
        folder,
        options=dict(fault.options.get(library, {})),
        recipe=mlp_with_sgd if fault.needs_norm else recipe,
        **fault.settings,
    )
    return diagnose(case.run(), **fault.told)


@dataclass(frozen=True)
class Healthy:
    """A right average."""

    library: type[Average]
    decay: float = DECAY
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)


def _methods() -> Iterator[tuple[str, Healthy]]:
    for method in ("swa", "lawa"):
        yield f"switch-ema: {method}", Healthy(OurMethod, options={"method": method})
    active = {"writes_live": True}
    for method in ("switch-ema", "pswa", "lookahead"):
        options = {"method": method}
        yield f"switch-ema: {method}", Healthy(OurMethod, DECAY, options, active)
    options = {"method": "switch-ema", "decay": 0.9}
    yield "switch-ema: decay 0.9", Healthy(OurMethod, DECAY, options, active)


HEALTHY: dict[str, Healthy] = {
    **{
        f"{name}, decay {decay}": Healthy(kind, decay)
        for name, kind in LIBRARIES.items()
        for decay in (0.9, 0.95, 0.98)
    },
    **{
        f"{name}, learning rate falls to 0": Healthy(kind, settings={"cosine": True})
        for name, kind in LIBRARIES.items()
    },
    **{
        f"{name}, decay and steps given": Healthy(kind, told=RATE)
        for name, kind in LIBRARIES.items()
    },
    "timm, warm-up": Healthy(LIBRARIES["timm"], 0.999, {"use_warmup": True}),
    "ema-pytorch, warm-up": Healthy(
        EMAPytorch, 0.9999, {"update_every": 1, "update_after_step": 0}
    ),
    "torch_ema, warm-up": Healthy(
        LIBRARIES["torch_ema"], 0.999, {"use_num_updates": True}
    ),
    "diffusers, warm-up": Healthy(
        LIBRARIES["diffusers"], 0.9999, {"use_ema_warmup": True}
    ),
    "MMEngine, warm-up": Healthy(MMEngineAnnealing, 0.999),
    "switch-ema, warm-up": Healthy(Ours, options={"decay": 0.999}),
    "plain loop, warm-up": Healthy(Loop, 0.999, {"warmup": True}),
    "ema-pytorch, every 10 steps": Healthy(
        EMAPytorch, 0.9, {"update_every": 10, "update_after_step": 100}
    ),
    "ema-pytorch, defaults": Healthy(EMAPytorch, 0.9999, {"power": 2 / 3}),
    "ema-pytorch, switching": Healthy(
        EMAPytorch,
        0.98,
        {
            "update_every": 1,
            "update_after_step": 0,
            "inv_gamma": 1e-9,
            "update_model_with_ema_every": 40,
        },
        {"writes_live": True},
    ),
    "MMEngine, every 5 steps": Healthy(
        LIBRARIES["MMEngine"], 0.9, {"interval": 5, "update_buffers": False}
    ),
    "switch-ema, every 4 steps": Healthy(Ours, options={"update_every": 4}),
    "timm, from step 50 on": Healthy(
        LIBRARIES["timm"], 0.98, {"update_after_step": 50}
    ),
    "torch AveragedModel, every 5 steps": Healthy(
        LIBRARIES["torch AveragedModel"],
        0.9,
        settings={"before_update": lambda case, step: step % 5 == 0},
    ),
    "torch AveragedModel, SWA": Healthy(
        LIBRARIES["torch AveragedModel"], options={"multi_avg_fn": None}
    ),
    "torch AveragedModel, SWA every 25 steps": Healthy(
        LIBRARIES["torch AveragedModel"],
        options={"multi_avg_fn": None},
        settings={"before_update": lambda case, step: step % 25 == 0},
    ),
    "MMEngine, SWA": Healthy(MMEngineSWA, options={"update_buffers": False}),
    "switch-ema, bfloat16": Healthy(Ours, options={"dtype": torch.bfloat16}),
    "switch-ema, bfloat16, warm-up": Healthy(
        Ours, options={"dtype": torch.bfloat16, "decay": 0.999}
    ),
    **dict(_methods()),
}


def examine_healthy(name: str, seed: int, folder: Path) -> Diagnosis:
    """Ask the doctor about a right average."""
    healthy = HEALTHY[name]
    case = Case(
        healthy.library,
        seed,
        folder,
        healthy.decay,
        dict(healthy.options),
        recipe=RECIPES[seed % len(RECIPES)],
        **healthy.settings,
    )
    return diagnose(case.run(), **healthy.told)


def names_of(result: Diagnosis) -> list[str]:
    return [finding.fault.name for finding in result.findings]


def run_faults(seeds: range) -> Iterator[dict[str, Any]]:
    """Yield a row for each fault and library."""
    for name, fault in FAULTS.items():
        for library in fault.libraries:
            row = {"fault": name, "expected": fault.expected, "library": library}
            row |= {"named": 0, "found": 0, "of": len(seeds), "missed": []}
            for seed in seeds:
                with tempfile.TemporaryDirectory() as folder:
                    result = examine(name, library, seed, Path(folder))
                found = names_of(result)
                row["named"] += fault.expected in found
                row["found"] += bool(found)
                if fault.expected not in found:
                    row["missed"].append(seed)
                    print("missed:", name, library, seed, found, *result.unknown)
            yield row


def run_healthy(seeds: range) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of right average."""
    for name in HEALTHY:
        row = {"healthy": name, "alarms": 0, "unknown": 0, "of": len(seeds)}
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                result = examine_healthy(name, seed, Path(folder))
            row["alarms"] += bool(result.findings)
            row["unknown"] += result.exit_code == 2
            if result.findings:
                print("alarm:", name, seed, *result.findings)
        yield row


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95% interval of a share."""
    z, share = 1.96, hits / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def _rate(hits: int, count: int) -> str:
    low, high = (f"{100 * end:.1f}" for end in wilson(hits, count))
    return (
        f"{hits} of {count} ({100 * hits / count:.1f}%, 95% interval {low} to {high}%)"
    )


def figures(results: Mapping[str, Any]) -> str:
    """Return the figures of docs/doctor.md as Markdown."""
    faults, healthy = results["faults"], results["healthy"]
    named, found, count = (
        sum(row[key] for row in faults) for key in ("named", "found", "of")
    )
    alarms, unknown, sound = (
        sum(row[key] for row in healthy) for key in ("alarms", "unknown", "of")
    )
    seeds = len(results["seeds"])
    trainings = len({row["fault"] for row in faults}) * seeds
    failed = {(row["fault"], seed) for row in faults for seed in row["missed"]}
    lines = [
        f"- Faults found: {_rate(found, count)}; named rightly: {_rate(named, count)}.",
        "- With one fault and seed, the libraries follow the same weights. Pairs of "
        "fault and seed named rightly in every library: "
        f"{_rate(trainings - len(failed), trainings)}.",
        f"- Healthy averages with a finding: {_rate(alarms, sound)}; could not tell: "
        f"{unknown}.",
        "",
        "| fault | named | libraries | the doctor says |",
        "| --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(row["fault"] for row in faults):
        rows = [row for row in faults if row["fault"] == name]
        hits, of = sum(row["named"] for row in rows), sum(row["of"] for row in rows)
        lines.append(
            f"| {name} | {hits} of {of} | {len(rows)} | {rows[0]['expected']} |"
        )
    return "\n".join(lines)


def _added(
    old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Add the results of two runs with the same rows."""
    rows = []
    for before, after in zip(old, new, strict=True):
        sums = {k: before[k] + v for k, v in after.items() if not isinstance(v, str)}
        rows.append(after | sums)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--add", action="store_true", help="to the seeds in the file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    faults, healthy = list(run_faults(seeds)), list(run_healthy(seeds))
    content = {
        "seeds": list(seeds),
        "torch": torch.__version__,
        "faults": faults,
        "healthy": healthy,
    }
    if arguments.add:
        old = json.loads(arguments.json.read_text(encoding="utf-8"))
        if set(old["seeds"]) & set(seeds):
            raise SystemExit(f"{arguments.json} has some of these seeds already.")
        content["seeds"] = old["seeds"] + content["seeds"]
        for key in ("faults", "healthy"):
            content[key] = _added(old[key], content[key])
    arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(figures(content))


if __name__ == "__main__":
    main()
