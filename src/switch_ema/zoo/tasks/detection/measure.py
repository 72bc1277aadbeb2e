"""Average precision as COCO defines it."""

import contextlib
import io
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.bench.task import Metric
from switch_ema.zoo.data.detection import Examples, Target
from switch_ema.zoo.data.sources import need

BOX_AP = Metric(name="box AP", higher_is_better=True, unit="%")
BOX_AP50 = Metric(name="box AP50", higher_is_better=True, unit="%")
MASK_AP = Metric(name="mask AP", higher_is_better=True, unit="%")

_SOURCES = {
    "box AP": ("bbox", "map"),
    "box AP50": ("bbox", "map_50"),
    "mask AP": ("segm", "map"),
}
"""Which of torchmetrics' values each metric is: kind of overlap and name."""


def average_precision(
    found: Iterable[tuple[Target, Target]], *, masks: bool
) -> dict[str, float]:
    """Measure detections against the truth.

    AP is the mean over categories and over the IoU thresholds 0.5, 0.55, ..., 0.95 of
    the area under the precision-recall curve; AP50 is that of the threshold 0.5. Where
    there is nothing to detect, it is NaN.

    Args:
        found: For each image what was detected (``boxes``, ``labels``, ``scores`` and
            ``masks`` of zeros and ones) and what is there.
        masks: Whether masks are measured, too.

    Returns:
        In percent, by the name of the metric.
    """
    kinds = ("bbox", "segm") if masks else ("bbox",)
    metric: Any = need("torchmetrics.detection").MeanAveragePrecision(
        iou_type=kinds, backend="faster_coco_eval"
    )
    for detected, truth in found:
        metric.update([_cleaned(detected, masks)], [_cleaned(truth, masks)])
    with contextlib.redirect_stdout(io.StringIO()):  # the evaluation prints its steps
        values = metric.compute()
    results = {}
    for name, (kind, key) in _SOURCES.items():
        if kind in kinds:
            value = float(values[f"{kind}_{key}" if masks else key])
            results[name] = 100 * value if value >= 0 else math.nan
    return results


def detect(
    model: nn.Module, examples: Examples, batch: int
) -> Iterable[tuple[Tensor, Target, Target]]:
    """Yield each image with what a model detects in it and what is there."""
    device = next(model.parameters()).device
    for begin in range(0, len(examples), batch):
        indices = range(begin, min(begin + batch, len(examples)))
        chosen = [examples[index] for index in indices]
        outputs = model([(image / 255).to(device) for image, _ in chosen])
        for (image, truth), output in zip(chosen, outputs, strict=True):
            found = {key: value.detach().cpu() for key, value in output.items()}
            if "masks" in found:  # probabilities, with a channel
                found["masks"] = (found["masks"][:, 0] > 0.5).to(torch.uint8)
            yield image, found, truth


def _cleaned(target: Target, masks: bool) -> Target:
    kept = {key: v for key, v in target.items() if masks or key != "masks"}
    if "masks" in kept:
        kept["masks"] = kept["masks"].bool()
    return kept
