"""Recognises the averages of the libraries: one decoder for each.

A decoder takes a tree, such as the value of ``checkpoint["ema"]``, and returns its
parts, or None if the tree is of another kind.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from switch_ema._methods import method_facts
from switch_ema.doctor.holdings import HeldPart, Role, plain_names
from switch_ema.doctor.reading import Leaf, Tree, is_leaf, read

Decoder = Callable[[Tree, str], "list[HeldPart] | None"]


def leaves(tree: Tree, prefix: str = "") -> dict[str, Leaf]:
    """Return the tensors directly below a tree whose names begin with a prefix."""
    return {
        name[len(prefix) :]: value
        for name, value in tree.items()
        if is_leaf(value) and name.startswith(prefix)
    }


def state_part(
    role: Role, where: str, tensors: Mapping[str, Leaf], library: str = "", **more: Any
) -> HeldPart:
    """Return a part with the names that the bare model has."""
    plain = plain_names(tensors)
    named = {plain[name]: leaf for name, leaf in tensors.items()}
    return HeldPart(role, where, named, library, **more)


def number(value: Any) -> float | int | None:
    """Return a plain number or the value of a tensor with one element."""
    if is_leaf(value) and value.info.elements == 1:
        value = read(value).item()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else None


def facts_of(tree: Tree, *names: str) -> dict[str, float | int]:
    """Return the numbers of a tree that have these names."""
    found = {name: number(tree.get(name)) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _ours(tree: Tree, where: str) -> list[HeldPart] | None:
    if not (isinstance(tree.get("method"), str) and tree["method"] in method_facts()):
        return None
    facts = {"method": tree["method"]}
    facts |= facts_of(tree, "steps", "epochs", "switches")
    return [
        state_part(
            "average", f"{where}.{name}", leaves(value), "switch-ema", facts=facts
        )
        for name, value in tree.items()
        if isinstance(value, Mapping) and leaves(value)
    ]


def _ema_pytorch(tree: Tree, where: str) -> list[HeldPart] | None:
    average = leaves(tree, "ema_model.")
    if not average or "initted" not in tree:
        return None
    facts = facts_of(tree, "step")
    initted = read(tree["initted"]).bool().all() if is_leaf(tree["initted"]) else True
    note = "" if initted else "never initialised: it still has the initial weights"
    parts = [
        state_part(
            "average",
            f"{where}, ema_model.*",
            average,
            "ema-pytorch",
            facts=facts,
            note=note,
        )
    ]
    if live := leaves(tree, "online_model."):
        parts.append(
            state_part("live", f"{where}, online_model.*", live, "ema-pytorch")
        )
    return parts


def _averaged_model(tree: Tree, where: str) -> list[HeldPart] | None:
    average = leaves(tree, "module.")
    if not average or "n_averaged" not in tree:
        return None
    facts = {"models averaged": number(tree["n_averaged"])}
    return [state_part("average", where, average, "torch AveragedModel", facts=facts)]


def _shadow_params(tree: Tree, where: str) -> list[HeldPart] | None:
    """torch_ema and diffusers: a list without names."""
    shadows = tree.get("shadow_params")
    if not isinstance(shadows, list) or not all(map(is_leaf, shadows)):
        return None
    library = "diffusers EMAModel" if "optimization_step" in tree else "torch_ema"
    facts = facts_of(tree, "decay", "num_updates", "optimization_step")
    parts = []
    stored: dict[Role, str] = {"average": "shadow_params", "live": "collected_params"}
    for role, name in stored.items():
        if (found := tree.get(name)) and all(map(is_leaf, found)):
            parts.append(
                HeldPart(
                    role,
                    f"{where}.{name}",
                    {str(index): leaf for index, leaf in enumerate(found)},
                    library,
                    facts if role == "average" else {},
                    is_named=False,
                    note="no names; extract takes those of the live weights or --like",
                )
            )
    return parts


def _mmengine(tree: Tree, where: str) -> list[HeldPart] | None:
    average = leaves(tree, "module.")
    if not average or not is_leaf(tree.get("steps")) or len(tree) != len(average) + 1:
        return None
    facts = facts_of(tree, "steps")
    return [state_part("average", where, average, "MMEngine", facts=facts)]


def _lit_ema(tree: Tree, where: str) -> list[HeldPart] | None:
    """Stable Diffusion's LitEma: names of the average have lost their dots."""
    average = leaves(tree, "model_ema.")
    if not {"decay", "num_updates"} <= average.keys():
        return None
    facts = facts_of(average, "decay", "num_updates")
    live = {
        name: leaf
        for name, leaf in leaves(tree).items()
        if not name.startswith("model_ema.")
    }
    named = _with_dots(average, live)
    parts = [state_part("live", where, live, "LitEma")]
    if named:
        parts.append(
            HeldPart("average", f"{where}, model_ema.*", named, "LitEma", facts)
        )
    return parts


def _with_dots(
    average: Mapping[str, Leaf], live: Mapping[str, Leaf]
) -> dict[str, Leaf]:
    """Give the average the names of the live weights that it was made from."""
    best: dict[str, Leaf] = {}
    for prefix in {"", *(name.partition(".")[0] + "." for name in live)}:
        squeezed = {
            name[len(prefix) :].replace(".", ""): name
            for name in live
            if name.startswith(prefix)
        }
        named = {
            squeezed[name]: leaf for name, leaf in average.items() if name in squeezed
        }
        best = max(best, named, key=len)
    return best


_BESIDE_MODEL = ("ema.", "optimizer.", "lr_scheduler.", "dataloader.", "train_state.")
"""Keys that torchtitan stores beside the names of the model."""


def _torchtitan(tree: Tree, where: str) -> list[HeldPart] | None:
    """torchtitan: the average is the state of a pseudo-optimizer."""
    pattern = re.compile(r"ema\.state\.(.+)\.ema_params")
    average = {
        match[1]: leaf
        for name, leaf in leaves(tree).items()
        if (match := pattern.fullmatch(name))
    }
    if not average:
        return None
    live = {
        name: leaf
        for name, leaf in leaves(tree).items()
        if not name.startswith(_BESIDE_MODEL)
    }
    parts = [
        HeldPart("average", f"{where}, ema.state.*.ema_params", average, "torchtitan")
    ]
    if live:
        parts.append(HeldPart("live", where, live, "torchtitan"))
    return parts


DECODERS: tuple[Decoder, ...] = (
    _ours,
    _ema_pytorch,
    _averaged_model,
    _shadow_params,
    _mmengine,
    _lit_ema,
    _torchtitan,
)
"""The first that recognises a tree decides."""


def decode(tree: Tree, where: str) -> list[HeldPart] | None:
    """Return the parts of a library's average, or None if no decoder knows it."""
    for decoder in DECODERS:
        if (parts := decoder(tree, where)) is not None:
            return parts
    return None
