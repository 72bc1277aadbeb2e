"""The tasks by name: a new task is one file and one line here.

The classes are named and not imported: a list of the tasks needs no torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switch_ema.bench.task import Task

TASKS: dict[str, str] = {
    "noisy-digits": ".toy.digits:NoisyDigits",
    "digits": ".toy.digits:Digits",
    "circles": ".toy.two_d:Circles",
    "moons": ".toy.two_d:Moons",
    "mnist1d": ".toy.mnist1d:MNIST1D",
    "images": ".classification.images:Images",
    "classification": ".classification.classification:Classification",
    "rotation": ".regression.rotation:Rotation",
    "lm": ".language.lm:LanguageModel",
    "simclr": ".ssl.contrastive:SimCLR",
    "moco-v2": ".ssl.moco_v2:MoCoV2",
    "byol": ".ssl.byol:BYOL",
    "barlow-twins": ".ssl.barlow_twins:BarlowTwins",
    "moco-v3": ".ssl.moco_v3:MoCoV3",
    "simmim": ".ssl.simmim:SimMIM",
    "a2mim": ".ssl.a2mim:A2MIM",
    "mae": ".ssl.mae:MAE",
    "ddpm": ".generation.ddpm:DDPM",
    "moving-mnist": ".video.moving_mnist:MovingMNIST",
}
"""Module and class; a module that begins with a dot is in this package."""


def import_task(name: str) -> "type[Task]":
    """Import the class of a task in the registry."""
    module, _, class_name = TASKS[name].partition(":")
    found: type[Task] = getattr(import_module(module, __package__), class_name)
    return found


def describe_task(name: str) -> str:
    """Return the first line of a task's docstring, read without importing it.

    >>> describe_task("moons")
    "Two noisy half-moons that interlock; 50 labelled points (the paper's toy)."
    """
    module, _, class_name = TASKS[name].partition(":")
    path = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise LookupError(f"{path} has no class {class_name}.")
