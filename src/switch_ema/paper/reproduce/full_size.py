"""Sizes of the paper's trainings with complete data, for estimates.

Numbers of examples are the publishers': a rehearsal may see fewer, since the data that
it finds may be a part, or generated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import load_task_class
from switch_ema.bench.spec import Spec, parse_spec

_IMAGES = {
    "cifar10": (50_000, 50_000, 10_000),
    "cifar100": (50_000, 50_000, 10_000),
    "stl10": (105_000, 5_000, 8_000),
    "imagenet": (1_281_167, 1_281_167, 50_000),
}
"""Training images, those with labels, and test images, by dataset."""
_COCO_TRAINED, _COCO_TESTED = 117_266, 5_000
"""Images of COCO 2017 with at least one box, and of its validation part."""
_FACES = {"agedb": (12_208, 2_140), "imdb-wiki": (191_509, 11_022)}
"""Training and test images, by dataset, of the usual preprocessing."""
_PTB = (929_589, 82_430)
_WIKITEXT = (103_227_021, 245_569)
_YELP = (650_000, 50_000)


@dataclass(frozen=True, kw_only=True)
class FullSize:
    """Examples of a training at the paper's scale."""

    unit: str
    """Name of the examples: images, clips, texts or words."""
    trained: int
    """Examples per epoch."""
    evaluated: int
    """Examples of an evaluation."""
    last: int
    """The same after the last epoch, where a protocol may follow."""
    batch: int
    """Examples per optimizer step."""


def full_size(task: str) -> FullSize:
    """Return the size of a row's task, such as ``mae:dataset=imagenet,scale=paper``."""
    spec = parse_spec(task)
    trained, evaluated, last, batch = _counts(spec)
    unit = _UNITS.get(spec.name, "images")
    return FullSize(
        unit=unit, trained=trained, evaluated=evaluated, last=last, batch=batch
    )


_UNITS = {
    "awd-lstm": "words",
    "bert-lm": "words",
    "bert-text": "texts",
    "moving-mnist": "clips",
}


def _counts(spec: Spec) -> tuple[int, int, int, int]:
    """Return examples per epoch, per evaluation, in the last one, and per step."""
    options = spec.options
    match spec.name:
        case "classification":
            return _classification(options)
        case "mask-rcnn" | "cascade-mask-rcnn" | "retinanet" | "yolox":
            return _detection(options)
        case "ddpm":
            from switch_ema.zoo.tasks.generation.settings import find_settings

            own = find_settings(options["dataset"], "paper")
            return own.size, own.samples, own.samples, own.batch
        case "moving-mnist":
            from switch_ema.zoo.tasks.video.moving_mnist import find_settings as find

            video = find(options["network"], "paper")
            return video.clips, video.tested, video.tested, video.batch
        case "rcf-mnist":
            return 60_000, 10_000, 10_000, 64
        case "age":
            trained, tested = _FACES[options["dataset"]]
            return trained, tested, tested, 256
        case "awd-lstm":
            return *_PTB, _PTB[1], 20 * 70
        case "bert-lm":
            return *_WIKITEXT, _WIKITEXT[1], 16 * 4 * 512
        case "bert-text":
            return *_YELP, _YELP[1], 8
    return _pretraining(spec)


def _classification(options: Mapping[str, Any]) -> tuple[int, int, int, int]:
    from switch_ema.zoo.procedures import create_procedure

    trained, _, tested = _IMAGES[options["dataset"]]
    procedure = create_procedure(options["procedure"], network=options["network"])
    return trained, tested, tested, procedure.batch_size


def _detection(options: Mapping[str, Any]) -> tuple[int, int, int, int]:
    from switch_ema.zoo.tasks.detection.settings import schedule_of

    schedule = schedule_of(options["schedule"])
    trained = _COCO_TRAINED * schedule.repeats
    return trained, _COCO_TESTED, _COCO_TESTED, schedule.batch


def _pretraining(spec: Spec) -> tuple[int, int, int, int]:
    """Count the images whose features are compared, and those of the protocol.

    A rehearsal fine-tunes one image for two whose features it computes.
    """
    from switch_ema.zoo.tasks.ssl.pretraining import (
        FINE_TUNED,
        NEIGHBOURS,
        VOTED,
        Pretraining,
    )

    task_class: Any = load_task_class(str(spec))[0]
    if not issubclass(task_class, Pretraining):
        raise UsageError(f"{spec.name} has no size of its own at the paper's scale.")
    trained, labelled, tested = _IMAGES[spec.options["dataset"]]
    compared = min(labelled, NEIGHBOURS) + min(tested, VOTED)
    last = labelled + tested
    if spec.options.get("protocol") == "fine-tune":
        last = 2 * FINE_TUNED["paper"] * labelled
    return trained, compared, last, task_class.paper.batch
