"""Tables 6 and 7 of the paper: object detection and instance segmentation on COCO."""

from typing import Any

from switch_ema.bench.recipe import Metric
from switch_ema.paper.tables.table import (
    FRESH,
    PaperMetric,
    PaperRow,
    PaperTable,
    RowSetting,
    values_of,
)
from switch_ema.zoo.decays import DECAYS, Decays

BOX_AP, MASK_AP = (
    Metric(name=name, higher_is_better=True, unit="%", decimals=1)
    for name in ("AP (boxes)", "AP (masks)")
)
_NOTE = (
    "Small networks on generated images of coloured shapes instead of COCO, RetinaNet "
    "with a ResNet on BCCD's blood cells, Mask R-CNN on cell nuclei, from scratch "
    "instead of from ImageNet weights, with AdamW. Switch EMA keeps the paper's share "
    "of an epoch's progress at each switch, and EMA averages over the paper's share of "
    "the training."
)

_FLATTENED: dict[str, dict[str, Any]] = {
    "mask-rcnn-2x": {
        "epochs": 24,
        "evaluate_every": 6,
        "decays": Decays(0.9908, 0.9160),
        "datasets": ("nuclei", "shapes"),
    },
    "retinanet-r50-2x": {
        "epochs": 16,
        "evaluate_every": 4,
        "decays": Decays(0.9849, 0.9087),
        "datasets": ("bccd", "shapes"),
    },
}
"""Small rows that train until plain training flattens. A switch keeps the paper's 86%
of an epoch's progress, and EMA averages over the paper's share of the training; the
other rows train for the task's own, fewer epochs."""
_SIZES = {"mask-rcnn-2x": {"size": 320}, "retinanet-r50-2x": {"size": 292}}
"""All training images of the nuclei and of BCCD, and as many shapes, so that the decays
fit both."""


def _row(
    name: str,
    title: str,
    task: str,
    options: dict[str, Any],
    metrics: tuple[PaperMetric, ...],
    *,
    kind: str = "detection",
    baseline: str = "plain",
    first_seed: int = FRESH,
) -> PaperRow:
    # Appendix B.3: ImageNet weights, except for YOLOX.
    start = {} if task == "yolox" else {"weights": "imagenet"}
    return PaperRow(
        name=name,
        title=title,
        small=RowSetting(
            task=task,
            options={**options, **_SIZES.get(name, {}), "scale": "small"},
            first_seed=first_seed,
            **_FLATTENED.get(name, {}),
        ),
        paper=RowSetting(
            task=task,
            options={**options, "scale": "paper", "dataset": "coco", **start},
            decays=DECAYS["coco", kind],
        ),
        metrics=metrics,
        baseline=baseline,
    )


def _both(
    boxes: str, box_gain: float, masks: str, mask_gain: float
) -> tuple[PaperMetric, ...]:
    methods = ("plain", "ema", "switch-ema")
    return (
        PaperMetric(
            metric=BOX_AP,
            values=values_of(methods, boxes),
            printed_gain=box_gain,
            ours="box AP",
        ),
        PaperMetric(
            metric=MASK_AP,
            values=values_of(methods, masks),
            printed_gain=mask_gain,
            ours="mask AP",
        ),
    )


def _boxes(cells: str, gain: float) -> tuple[PaperMetric, ...]:
    methods = ("plain", "ema", "swa", "switch-ema")
    return (
        PaperMetric(
            metric=BOX_AP,
            values=values_of(methods, cells),
            printed_gain=gain,
            ours="box AP",
        ),
    )


TABLE_6 = PaperTable(
    name="table-6",
    title="Detection and instance segmentation on COCO",
    family="detection",
    small_note=_NOTE,
    rows=(
        _row(
            "mask-rcnn-2x",
            "Mask R-CNN (2x)",
            "mask-rcnn",
            {"schedule": "2x"},
            _both("39.1 39.3 39.7", 0.6, "35.3 35.5 35.8", 0.5),
            kind="segmentation",
            first_seed=FRESH + 100,
        ),
        _row(
            "cascade-mask-rcnn-3x",
            "Cas. Mask R-CNN (3x)",
            "cascade-mask-rcnn",
            {"schedule": "3x"},
            _both("44.0 44.2 44.4", 0.4, "38.3 38.5 38.6", 0.3),
            kind="segmentation",
        ),
        _row(
            "cascade-mask-rcnn-9x",
            "Cas. Mask R-CNN (9x)",
            "cascade-mask-rcnn",
            {"schedule": "9x"},
            _both("44.0 44.5 45.1", 1.1, "38.5 38.8 39.2", 0.7),
            kind="segmentation",
            first_seed=FRESH + 100,
        ),
    ),
)

TABLE_7 = PaperTable(
    name="table-7",
    title="Detection on COCO, by detector and backbone",
    family="detection",
    small_note=_NOTE,
    rows=(
        _row(
            "retinanet-r50-2x",
            "RetinaNet (2x), R-50",
            "retinanet",
            {"schedule": "2x"},
            _boxes("37.3 37.6 37.6 37.7", 0.4),
            first_seed=FRESH + 100,
        ),
        _row(
            "retinanet-swin-t-1x",
            "RetinaNet (1x), Swin-T",
            "retinanet",
            {"schedule": "1x", "backbone": "swin-t"},
            _boxes("41.6 41.8 41.9 42.1", 0.5),
        ),
        # EMA is part of YOLOX's own training: the gain is over it.
        _row(
            "yolox-s",
            "YoloX (300ep), YoloX-S",
            "yolox",
            {"schedule": "yolox-300"},
            _boxes("37.7 40.2 39.6 40.5", 0.3),
            baseline="ema",
        ),
    ),
)
