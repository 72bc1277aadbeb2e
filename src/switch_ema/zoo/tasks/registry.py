"""The tasks by name; to add one, add a file and a line here.

Classes are named, not imported, so listing the tasks does not import torch.
"""

from typing import TYPE_CHECKING

from switch_ema._lazy import describe_named, load_named

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
    "rcf-mnist": ".regression.rcf_mnist:RCFMNIST",
    "age": ".regression.age:Age",
    "cell-count": ".regression.cell_count:CellCount",
    "lm": ".language.lm:LanguageModel",
    "awd-lstm": ".language.awd_lstm:AWDLanguageModel",
    "bert-text": ".language.bert_text:BertText",
    "bert-lm": ".language.bert_lm:BertLanguageModel",
    "simclr": ".ssl.simclr:SimCLR",
    "moco-v2": ".ssl.moco_v2:MoCoV2",
    "byol": ".ssl.byol:BYOL",
    "barlow-twins": ".ssl.barlow_twins:BarlowTwins",
    "moco-v3": ".ssl.moco_v3:MoCoV3",
    "simmim": ".ssl.simmim:SimMIM",
    "a2mim": ".ssl.a2mim:A2MIM",
    "mae": ".ssl.mae:MAE",
    "retinanet": ".detection.retinanet:RetinaNet",
    "mask-rcnn": ".detection.mask_rcnn:MaskRCNN",
    "cascade-mask-rcnn": ".detection.mask_rcnn:CascadeMaskRCNN",
    "yolox": ".detection.yolox:YoloX",
    "ddpm": ".generation.ddpm:DDPM",
    "moving-mnist": ".video.moving_mnist:MovingMNIST",
}
"""Module and class; a leading dot means this package."""

DATA: dict[str, str] = {
    "rcf-mnist": "fashion_mnist",
    "age": "agedb",
    "cell-count": "bccd",
    "bert-text": "reviews",
    "bert-lm": "wikitext2",
}
"""Dataset that a task needs by default; that of the others comes with a library."""


def import_task(name: str) -> "type[Task]":
    """Import a registered task's class."""
    found: type[Task] = load_named(_full(name))
    return found


def describe_task(name: str) -> str:
    """Return the first line of a task's docstring, without importing the task."""
    return describe_named(_full(name))


def _full(name: str) -> str:
    where = TASKS[name]
    return f"{__package__}{where}" if where.startswith(".") else where
