"""Finds the live weights, averages and optimizer state of a checkpoint or folder."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from switch_ema._checks import listed
from switch_ema.averaging.offline.checkpoints import INDEX
from switch_ema.averaging.offline.confined import locate
from switch_ema.doctor.formats import decode, facts_of, leaves, state_part
from switch_ema.doctor.holdings import HeldPart, Holdings, Role
from switch_ema.doctor.reading import ModuleTree, Source, Tree, open_source
from switch_ema.integrations.averages import AVERAGER_FILE

_AVERAGE = re.compile(
    r"(^|[._])(ema|swa|averaged?|average|shadow|polyak)([._]|$)", re.I
)
"""Keys whose value is an average, such as state_dict_ema or params_ema."""
_LIVE = re.compile(
    r"^(model|net|network|module|state_dict|model_state(_dict)?|net_state_dict|params|"
    r"weights|live|generator|unet|transformer|current_model_state)$",
    re.I,
)
"""Keys whose value is a model."""
_DEEPEST = 4
"""Keys that are followed below the top of a checkpoint."""
_WITH_DECAY = ("decay", "optimization_step", "update_after_step")
"""Facts that diffusers writes into the config of an average."""


def inspect_checkpoint(path: str | Path) -> Holdings:
    """Return the parts of a checkpoint: a file, or a folder.

    Nothing of a file is executed, and tensors are not read.

    Raises:
        ValueError: the format is unknown, or the file is damaged.
        OSError: it cannot be read.
    """
    path = Path(path)
    if path.is_dir() and not (path / ".metadata").is_file():
        return _inspect_folder(path)
    source = open_source(path)
    parts, library = _parts_of(source)
    notes = _notes(source, parts)
    name = f"{library}, {source.storage}" if library else source.storage
    return Holdings(path, name, tuple(parts), notes, source.metadata)


def _parts_of(source: Source) -> tuple[list[HeldPart], str]:
    """Return the parts of a file and the trainer that wrote it."""
    tree = source.tree
    for container in (_weight_averaging, _our_lightning, _mmengine):
        if (found := container(tree)) is not None:
            return found
    parts = list(_search(tree, ""))
    parts = _settle_roles(parts, source)
    return parts, _trainer(tree, source, parts)


def _search(
    tree: Tree, where: str, role: Role | None = None, depth: int = 0
) -> Iterator[HeldPart]:
    """Yield the parts below a tree; ``role`` is what the keys above say."""
    if _is_optimizer(tree):
        tensors = dict(_all_leaves(tree["state"]))
        yield HeldPart("optimizer", where, tensors)
        return
    if (parts := decode(tree, where)) is not None:
        yield from parts
        return
    own = leaves(tree)
    if own and (len(own) >= len(tree) / 2 or isinstance(tree, ModuleTree)):
        yield from _state_dicts(own, where, role)
        return
    if depth == _DEEPEST:
        return
    facts = facts_of(tree, "updates", "decay", "steps", "step", "num_updates")
    for key, value in tree.items():
        if not isinstance(value, Mapping) or not value:
            continue
        inner = f"{where}.{key}" if where else key
        for part in _search(value, inner, _role_of(key) or role, depth + 1):
            is_bare = part.role == "average" and not part.facts
            yield replace(part, facts=facts) if is_bare else part


def _state_dicts(
    tensors: Mapping[str, Any], where: str, role: Role | None
) -> Iterator[HeldPart]:
    """Yield a state dict, divided if its names begin with the keys of several models.

    Distributed checkpoints join the keys of nested dictionaries.
    """
    first: dict[str, dict[str, Any]] = {}
    for name, leaf in tensors.items():
        key, _, rest = name.partition(".")
        first.setdefault(key, {})[rest] = leaf
    roles = {key: _role_of(key) for key in first}
    if role is None and "average" in roles.values() and len(first) > 1:
        for key, inner in first.items():
            if key in ("optimizer", "optim", "lr_scheduler", "scheduler"):
                yield HeldPart("optimizer", key, inner)
            else:
                decoded = decode(inner, key)
                yield from decoded or [state_part(roles[key] or "weights", key, inner)]
        return
    yield state_part(role or "weights", where, tensors)


def _role_of(key: str) -> Role | None:
    if _AVERAGE.search(key):
        return "average"
    return "live" if _LIVE.match(key) else None


def _is_optimizer(tree: Tree) -> bool:
    return isinstance(tree.get("state"), Mapping) and "param_groups" in tree


def _all_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, leaf in leaves(tree).items():
        yield f"{prefix}{name}", leaf
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _all_leaves(value, f"{prefix}{name}.")


def _settle_roles(parts: list[HeldPart], source: Source) -> list[HeldPart]:
    """Decide about weights whose key says nothing, by the other parts.

    A file with one set of weights does not say which they are, unless its header does.
    """
    models = [part for part in parts if part.role != "optimizer"]
    has_average = any(part.role == "average" for part in models)
    stated = source.metadata.get("switch_ema.weights")
    settled = []
    for part in parts:
        role: Role = part.role
        if role == "live" and not has_average:
            role = "weights"
        if role == "weights" and has_average:
            role = "live"
        if role == "weights" and stated in ("average", "live"):
            role = "average" if stated == "average" else "live"
        settled.append(replace(part, role=role))
    return settled


def _weight_averaging(tree: Tree) -> tuple[list[HeldPart], str] | None:
    """Lightning's WeightAveraging keeps the average under ``state_dict``."""
    if not {"state_dict", "current_model_state", "averaging_state"} <= tree.keys():
        return None
    facts = facts_of(tree["averaging_state"], "n_averaged")
    library = "Lightning WeightAveraging"
    average, live = leaves(tree["state_dict"]), leaves(tree["current_model_state"])
    parts = [
        state_part("average", "state_dict", average, library, facts=facts),
        state_part("live", "current_model_state", live, library),
    ]
    return parts + list(_optimizers(tree)), library


def _our_lightning(tree: Tree) -> tuple[list[HeldPart], str] | None:
    """Our Lightning callback keeps the other weights beside its averager."""
    ours = tree.get("switch_ema")
    if not isinstance(ours, Mapping) or "averager" not in ours:
        return None
    averages = decode(ours["averager"], "switch_ema.averager") or []
    facts = averages[0].facts if averages else {}
    other = "live" if "live" in ours else "averaged"
    main: Role = "average" if other == "live" else "live"
    second: Role = "live" if other == "live" else "average"
    library = "switch-ema"
    roles = (
        ("state_dict", tree["state_dict"], main),
        (f"switch_ema.{other}", ours[other], second),
    )
    parts = [
        state_part(
            role,
            where,
            leaves(found),
            library,
            facts=facts if role == "average" else {},
        )
        for where, found, role in roles
    ]
    return parts + list(_optimizers(tree)), "Lightning with switch-ema's callback"


def _mmengine(tree: Tree) -> tuple[list[HeldPart], str] | None:
    """MMEngine's EMAHook exchanges the two state dicts when it saves."""
    stored = tree.get("ema_state_dict")
    if not isinstance(stored, Mapping) or not isinstance(
        tree.get("state_dict"), Mapping
    ):
        return None
    decoded = decode(stored, "ema_state_dict")
    if not decoded or decoded[0].library != "MMEngine":
        return None
    note = "MMEngine exchanges the two when it saves"
    live = replace(decoded[0], role="live", facts={}, note=note)
    average = state_part(
        "average",
        "state_dict",
        leaves(tree["state_dict"]),
        "MMEngine",
        facts=decoded[0].facts,
    )
    return [average, live, *_optimizers(tree)], "MMEngine"


def _optimizers(tree: Tree) -> Iterator[HeldPart]:
    for key, value in tree.items():
        values = value if isinstance(value, list) else [value]
        for each in values:
            if isinstance(each, Mapping) and _is_optimizer(each):
                yield HeldPart("optimizer", key, dict(_all_leaves(each["state"])))


def _trainer(tree: Tree, source: Source, parts: list[HeldPart]) -> str:
    """Name what wrote a file, by its keys and classes."""
    if "pytorch-lightning_version" in tree:
        return "Lightning"
    if any(name.startswith("ultralytics.") for name in source.opaque):
        return "ultralytics"
    if {"state_dict", "arch"} <= tree.keys():
        return "timm"
    libraries = {part.library for part in parts if part.library}
    return ", ".join(sorted(libraries))


def _notes(source: Source, parts: list[HeldPart]) -> tuple[str, ...]:
    notes = []
    if source.opaque:
        foreign_first = sorted(
            source.opaque, key=lambda name: name.startswith("torch.")
        )
        classes = listed(foreign_first, most=3)
        notes.append(f"Objects of these classes were not loaded: {classes}.")
    if not parts:
        keys = listed(list(source.tree))
        notes.append(f"No weights were found; the keys are {keys}.")
    models = [part for part in parts if part.role != "optimizer"]
    if len(models) == 1 and models[0].role == "weights":
        notes.append("The file does not say whether these weights are averaged.")
    return tuple(notes)


def _inspect_folder(path: Path) -> Holdings:
    """Inspect a folder of Transformers, Accelerate, peft or diffusers."""
    parts: list[HeldPart] = []
    notes: list[str] = []
    provenance: dict[str, str] = {}
    library = ""
    for name, inside in _model_files(path):
        holdings = inspect_checkpoint(inside)
        where = f"{name}: " if name else ""
        provenance |= holdings.provenance
        notes += [note for note in holdings.notes if "averaged" not in note]
        parts += [
            replace(part, where=f"{where}{part.where}".rstrip(": "))
            for part in holdings.parts
        ]
    if not parts:
        raise ValueError(
            f"{path} has no checkpoint: no safetensors or torch.save file, and no "
            ".metadata of torch.distributed.checkpoint."
        )
    for sub in sorted(path.glob("*_ema")):
        library, changed = _diffusers(path, sub, parts)
        parts = changed
    if any(part.where.startswith(AVERAGER_FILE) for part in parts):
        library, parts = (
            "Transformers with switch-ema's callback",
            _with_callback(parts),
        )
    if (path / "adapter_config.json").is_file():
        library = "peft adapter"
    settled = _settle_roles(parts, Source(path, "", {}, provenance))
    if not any(part.role in ("average", "live") for part in settled):
        notes.append("The folder does not say whether these weights are averaged.")
    kind = library or ("Transformers" if (path / "config.json").is_file() else "folder")
    return Holdings(path, kind, tuple(settled), tuple(notes), provenance)


def _model_files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the checkpoints of a folder, and those of its direct subfolders."""
    indices = sorted(path.glob(f"*{INDEX}"))
    files = sorted(path.glob("*.safetensors"))
    if indices:
        yield indices[0].name, locate(path, indices[0].name)
    else:
        for file in files:
            yield file.name, locate(path, file.name)
    for pattern in ("*.pt", "*.pth", "*.bin", "*.ckpt", "custom_checkpoint_*.pkl"):
        for file in sorted(path.glob(pattern)):
            if file.name not in ("training_args.bin", "scheduler.pt", "scheduler.bin"):
                yield file.name, locate(path, file.name)
    for folder in sorted(inner for inner in path.iterdir() if inner.is_dir()):
        if folder.is_symlink():
            continue
        if (folder / ".metadata").is_file():
            yield folder.name, folder
        else:
            for file in sorted(folder.glob("*.safetensors")):
                yield f"{folder.name}/{file.name}", locate(folder, file.name, path)


def _diffusers(
    path: Path, averaged: Path, parts: list[HeldPart]
) -> tuple[str, list[HeldPart]]:
    """Mark ``unet_ema/`` as the average of ``unet/``, with the facts of its config."""
    facts: dict[str, float | int] = {}
    if (averaged / "config.json").is_file():
        text = locate(averaged, "config.json", path).read_text(encoding="utf-8")
        facts = facts_of(json.loads(text), *_WITH_DECAY)
    changed = []
    for part in parts:
        if part.where.startswith(f"{averaged.name}/"):
            part = replace(part, role="average", library="diffusers", facts=facts)
        changed.append(part)
    return "diffusers", changed


def _with_callback(parts: list[HeldPart]) -> list[HeldPart]:
    """With our callback, Transformers saves the average as the model."""
    facts: Mapping[str, Any] = {}
    for part in parts:
        if part.where.startswith(AVERAGER_FILE) and part.role == "average":
            facts = part.facts
    changed = []
    for part in parts:
        if part.where.startswith(AVERAGER_FILE) and part.role == "average":
            continue  # the same average as the model's, less what is not averaged
        if part.role == "weights" and ".safetensors" in part.where:
            part = replace(part, role="average", library="switch-ema", facts=facts)
        changed.append(part)
    return changed
