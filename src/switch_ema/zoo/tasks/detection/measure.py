"""Average precision as COCO defines it."""

import contextlib
import io
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.bench.sharding import Shard
from switch_ema.bench.task import Metric
from switch_ema.zoo.data.detection import Target
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.detection.batches import Batch

BOX_AP = Metric(name="box AP", higher_is_better=True, unit="%")
BOX_AP50 = Metric(name="box AP50", higher_is_better=True, unit="%")
MASK_AP = Metric(name="mask AP", higher_is_better=True, unit="%")

_SOURCES = {
    "box AP": ("bbox", "map"),
    "box AP50": ("bbox", "map_50"),
    "mask AP": ("segm", "map"),
}
"""The torchmetrics value behind each metric: IoU type and name."""


def average_precision(
    found: Iterable[tuple[Target, Target]], *, masks: bool, shard: Shard | None = None
) -> dict[str, float]:
    """Measure detections against the ground truth.

    AP is the area under the precision-recall curve, averaged over categories and the
    IoU thresholds 0.5, 0.55, ..., 0.95; AP50 uses the threshold 0.5 only. Without
    objects to detect it is NaN.

    Args:
        found: Detections (``boxes``, ``labels``, ``scores`` and ``masks`` of zeros and
            ones) and ground truth of each image.
        masks: Whether to measure masks too.
        shard: Given if workers found parts of the images, which are then measured
            together.

    Returns:
        The metrics by name, in percent.
    """
    kinds = ("bbox", "segm") if masks else ("bbox",)
    metric: Any = need("torchmetrics.detection").MeanAveragePrecision(
        iou_type=kinds, backend="faster_coco_eval", sync_on_compute=False
    )
    for detected, truth in found:
        metric.update([_cleaned(detected, masks)], [_cleaned(truth, masks)])
    if shard is not None:  # masks are run-length encoded by now
        for name, images in metric.metric_state.items():
            setattr(metric, name, shard.gather_items(images))
    with contextlib.redirect_stdout(
        io.StringIO()
    ):  # the evaluation prints its progress
        values = metric.compute()
    results = {}
    for name, (kind, key) in _SOURCES.items():
        if kind in kinds:
            value = float(values[f"{kind}_{key}" if masks else key])
            results[name] = 100 * value if value >= 0 else math.nan
    return results


def detect(
    model: nn.Module, batches: Iterable[Batch]
) -> Iterable[tuple[Tensor, Target, Target]]:
    """Yield each image with the model's detections and the ground truth.

    Args:
        model: The detector.
        batches: Images as bytes, with their targets.
    """
    device = next(model.parameters()).device
    for images, truths in batches:
        moved = [image.to(device, non_blocking=True) for image in images]
        outputs = model([image / 255 for image in moved])
        for image, truth, output in zip(images, truths, outputs, strict=True):
            found = {key: value.detach().cpu() for key, value in output.items()}
            if "masks" in found:  # probabilities, with a channel
                found["masks"] = (found["masks"][:, 0] > 0.5).to(torch.uint8)
            yield image, found, truth


def _cleaned(target: Target, masks: bool) -> Target:
    kept = {key: v for key, v in target.items() if masks or key != "masks"}
    if "masks" in kept:
        kept["masks"] = kept["masks"].bool()
    return kept
