"""Calibration measures of a classifier."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from switch_ema._checks import check_count, check_positive

TEMPERATURES = (0.01, 100.0)
"""Search range of temperatures; a model without errors would have 0 as its best."""
_Z = 1.959963984540054  # of a 95% interval


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predicted probabilities and labels of examples.

    Made by ``from_logits`` or ``from_probabilities``.

    Attributes:
        log_probabilities: Examples by classes, in float64.
        labels: The true class of each example.
    """

    log_probabilities: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        scores, labels = self.log_probabilities, self.labels
        if scores.ndim != 2 or scores.shape[1] < 2 or not len(scores):
            raise ValueError(
                "predictions must have the shape (examples, classes) with at least 1 "
                f"example and 2 classes, got {tuple(scores.shape)}."
            )
        if labels.shape != scores.shape[:1]:
            raise ValueError(
                f"labels must have the shape ({len(scores)},), got "
                f"{tuple(labels.shape)}."
            )
        if labels.min() < 0 or labels.max() >= scores.shape[1]:
            raise ValueError(
                f"labels must be in [0, {scores.shape[1]}), got "
                f"{labels.min().item()} to {labels.max().item()}."
            )

    @classmethod
    def from_logits(cls, logits: Tensor, labels: Tensor) -> "Predictions":
        """Make predictions from logits."""
        if not logits.isfinite().all():
            raise ValueError("logits must be finite, but some are not.")
        return cls(logits.detach().double().log_softmax(-1), _whole(labels))

    @classmethod
    def from_probabilities(cls, probabilities: Tensor, labels: Tensor) -> "Predictions":
        """Make predictions from probabilities; columns are classes and sum to 1."""
        found = probabilities.detach().double()
        sums = found.sum(-1)
        if not (found >= 0).all() or not ((sums - 1).abs() < 1e-3).all():
            raise ValueError(
                "probabilities must be at least 0 and sum to 1, got values from "
                f"{found.min().item():g} and sums from {sums.min().item():g} to "
                f"{sums.max().item():g}."
            )
        return cls((found / sums.unsqueeze(-1)).log(), _whole(labels))

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted class."""
        return self.log_probabilities.max(1).values.exp()

    @property
    def correct(self) -> Tensor:
        """1 where the predicted class is correct, otherwise 0."""
        return (self.log_probabilities.argmax(1) == self.labels).double()

    def tempered(self, temperature: float) -> "Predictions":
        """Divide the logits by a temperature; above 1 lowers the confidence."""
        check_positive("temperature", temperature)
        scores = (self.log_probabilities / temperature).log_softmax(1)
        return Predictions(scores, self.labels)


@dataclass(frozen=True)
class Bin:
    """Examples with confidence in ``[low, high)``; the last bin includes 1."""

    low: float
    high: float
    count: int
    confidence: float
    """Mean; NaN in an empty bin, like the accuracy."""
    accuracy: float
    accuracy_low: float
    """Lower end of Wilson's 95% interval; [0, 1] in an empty bin."""
    accuracy_high: float


@dataclass(frozen=True)
class Calibration:
    """All measures of one model; smaller errors are better."""

    accuracy: float
    confidence: float
    """Mean over the examples; a mean above the accuracy means overconfidence."""
    ece: float
    adaptive_ece: float
    brier: float
    nll: float
    temperature: float
    """Best temperature on held-out predictions."""
    tempered_ece: float
    """At that temperature, like the next: error that temperature scaling cannot fix."""
    tempered_nll: float


def measure_calibration(
    predictions: Predictions, held_out: Predictions, *, bins: int = 15
) -> Calibration:
    """Measure one model in every way, for a table of methods.

    Args:
        predictions: Predictions to measure.
        held_out: Predictions of the same model on other examples, for the temperature.
        bins: Number of bins of both calibration errors.
    """
    temperature = fit_temperature(held_out)
    tempered = predictions.tempered(temperature)
    return Calibration(
        accuracy=predictions.correct.mean().item(),
        confidence=predictions.confidence.mean().item(),
        ece=calibration_error(reliability(predictions, bins)),
        adaptive_ece=calibration_error(reliability(predictions, bins, adaptive=True)),
        brier=brier_score(predictions),
        nll=negative_log_likelihood(predictions),
        temperature=temperature,
        tempered_ece=calibration_error(reliability(tempered, bins)),
        tempered_nll=negative_log_likelihood(tempered),
    )


def reliability(
    predictions: Predictions, bins: int = 15, *, adaptive: bool = False
) -> tuple[Bin, ...]:
    """Sort the examples into bins by confidence, and measure the accuracy in each bin.

    Args:
        predictions: Of one model.
        bins: Number of bins.
        adaptive: Use bins of about equal counts instead of equal widths. Examples of
            the same confidence stay together, so there may be fewer bins.
    """
    check_count("bins", bins)
    confidence, correct = predictions.confidence.cpu(), predictions.correct.cpu()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    if adaptive:
        inner = confidence.sort().values[
            len(confidence) * torch.arange(1, bins) // bins
        ]
        edges = torch.unique(torch.cat([edges[:1], inner, edges[-1:]]))
    # Rounding may push a confidence above 1.
    place = torch.bucketize(confidence, edges[1:-1].contiguous(), right=True)
    size = len(edges) - 1
    count = torch.bincount(place, minlength=size)
    mean_confidence = torch.bincount(place, confidence, size) / count
    accuracy = torch.bincount(place, correct, size) / count
    rows = zip(count.tolist(), mean_confidence.tolist(), accuracy.tolist(), strict=True)
    return tuple(
        Bin(low, high, n, mean, share, *_wilson(share, n))
        for low, high, (n, mean, share) in zip(
            edges[:-1].tolist(), edges[1:].tolist(), rows, strict=True
        )
    )


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """Return the expected calibration error, between 0 and 1 (Guo et al., 2017).

    ``sum_b n_b / n * |accuracy_b - confidence_b|``. It is biased upwards: with few
    examples per bin even perfect predictions have an error. Only compare equal n.
    """
    filled = [b for b in bins if b.count]
    gaps = math.fsum(b.count * abs(b.accuracy - b.confidence) for b in filled)
    return gaps / sum(b.count for b in filled)


def brier_score(predictions: Predictions) -> float:
    """Return the mean squared distance to the true class, between 0 and 2."""
    probabilities = predictions.log_probabilities.exp()
    truth = one_hot(predictions.labels, probabilities.shape[1])
    return (probabilities - truth).square().sum(1).mean().item()


def negative_log_likelihood(predictions: Predictions) -> float:
    """Return the mean cross-entropy, in nats; infinite at probability 0."""
    return nll_loss(predictions.log_probabilities, predictions.labels).item()


def fit_temperature(predictions: Predictions) -> float:
    """Return the temperature that maximises the likelihood of held-out predictions.

    The likelihood has a single peak, so the best temperature within ``TEMPERATURES``
    is the global best, clipped to that range.
    """
    # Classes of probability 0 would give NaN gradients.
    scores = predictions.log_probabilities.clamp(min=math.log(1e-300))
    # The loss is convex in the inverse temperature.
    inverse = torch.ones((), dtype=torch.float64, device=scores.device)
    inverse.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [inverse],
        max_iter=200,
        tolerance_grad=1e-10,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        loss = nll_loss((scores * inverse).log_softmax(1), predictions.labels)
        inverse.grad = torch.autograd.grad(loss, inverse)[0]
        return loss.item()

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    low, high = TEMPERATURES
    return 1 / min(max(inverse.item(), 1 / high), 1 / low)


def _whole(labels: Tensor) -> Tensor:
    if labels.is_floating_point():
        raise ValueError(f"labels must be whole numbers, got {labels.dtype}.")
    return labels.long()


def _wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share, accurate near 0 and 1 and for few."""
    if not count:
        return 0.0, 1.0
    total = count + _Z**2
    centre = (share * count + _Z**2 / 2) / total
    half = _Z / total * math.sqrt(count * share * (1 - share) + _Z**2 / 4)
    return max(centre - half, 0.0), min(centre + half, 1.0)
