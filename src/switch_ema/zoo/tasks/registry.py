"""The tasks by name; to add one, add a file and a line here.

Classes are named, not imported, so listing the tasks does not import torch.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from switch_ema._extras import missing_extra, needed
from switch_ema._lazy import describe_named, load_named
from switch_ema.bench.errors import UsageError

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

_PAPER_DATA: dict[str, tuple[str, ...]] = {
    "rcf-mnist": ("fashion_mnist", "cifar10"),
    "awd-lstm": ("ptb",),
    "moving-mnist": ("mnist", "moving_mnist"),
}
"""Datasets of tasks at the paper's scale that do not have the option dataset."""

_FAMILIES: dict[str, str] = {
    "toy": "toy",
    "classification": "vision",
    "regression": "vision",
    "language": "language",
    "ssl": "self-supervised",
    "detection": "detection",
    "generation": "generation",
    "video": "video",
}
"""The extra that installs what the tasks of each subpackage need."""

_IMAGES = ("timm", "torchvision")
_SELF_SUPERVISED = ("lightly", *_IMAGES)
_DETECTION = ("faster_coco_eval", "torchmetrics", "torchvision")
_BERT = ("tokenizers", "transformers")
PACKAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("noisy-digits", "digits", "circles", "moons"), ("sklearn",)),
    "mnist1d": ("mnist1d",),
    "images": ("torchvision",),
    **dict.fromkeys(("classification", "rcf-mnist", "age", "cell-count"), _IMAGES),
    **dict.fromkeys(("bert-text", "bert-lm"), _BERT),
    **dict.fromkeys(("simclr", "moco-v2", "byol", "barlow-twins"), _SELF_SUPERVISED),
    **dict.fromkeys(("moco-v3", "simmim", "a2mim", "mae"), _SELF_SUPERVISED),
    **dict.fromkeys(("retinanet", "mask-rcnn", "cascade-mask-rcnn"), _DETECTION),
    "yolox": _DETECTION,
    "ddpm": ("diffusers", "torchmetrics", "torchvision"),
    "moving-mnist": ("torchmetrics", "torchvision"),
}
"""Modules without which a task cannot be trained, whatever its options."""


def import_task(name: str) -> "type[Task]":
    """Import a registered task's class."""
    with needed(None, extra_of(name), user=name, error=UsageError):
        found: type[Task] = load_named(_full(name))
    return found


def extra_of(name: str) -> str:
    """Return the extra with the packages of a task.

    >>> extra_of("ddpm")
    'generation'
    """
    return _FAMILIES[TASKS[name].split(".")[1]]


def check_packages(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a task that lacks a package, before anything is trained.

    Args:
        name: the task.
        options: all of its options, with the defaults of those that were not given.
    """
    digits = ("sklearn",) if "digits" in options.values() else ()
    for module in (*PACKAGES.get(name, ()), *digits):
        if find_spec(module) is None:
            raise UsageError(missing_extra(module, extra_of(name), name))


def needed_data(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the datasets that a task reads from files at the paper's scale.

    >>> needed_data("mae", {"scale": "paper", "dataset": "stl10"})
    ('stl10',)
    """
    if options.get("scale") != "paper":
        return ()
    dataset = options.get("dataset")
    return _PAPER_DATA.get(name, ()) if dataset is None else (str(dataset),)


def needed_weights(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the published weights that a task needs, named as in ``pretrained.py``.

    >>> needed_weights("retinanet", {"weights": "imagenet", "backbone": "swin-t"})
    ('swin-t',)
    """
    weights = options.get("weights")
    if weights == "imagenet":
        return (str(options.get("backbone", "resnet50")),)
    if weights == "bert-base-uncased":
        return (weights,)
    return ("inception",) if options.get("inception") else ()


def describe_task(name: str) -> str:
    """Return the first line of a task's docstring, without importing the task."""
    return describe_named(_full(name))


def _full(name: str) -> str:
    where = TASKS[name]
    return f"{__package__}{where}" if where.startswith(".") else where
