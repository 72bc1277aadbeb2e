"""SimOTA against a matcher that looks at every pair by itself."""

import math

import pytest
import torch
from torch import Tensor

from switch_ema.zoo.models.detection.simota import assign


def iou(a: list[float], b: list[float]) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    overlap = max(wide, 0.0) * max(high, 0.0)
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    return overlap / (sum(areas) - overlap)


def pair_cost(
    classes: list[float], objectness: float, label: int, overlap: float, central: bool
) -> float:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    cost = -3 * math.log(overlap + 1e-8) + (0 if central else 1e5)
    for index, logit in enumerate(classes):
        p = math.sqrt(sigmoid(logit) * sigmoid(objectness))
        cost -= math.log(p) if index == label else math.log(1 - p)
    return cost


def brute_force(
    boxes: list[list[float]],
    classes: list[list[float]],
    objectness: list[float],
    centres: list[list[float]],
    strides: list[float],
    truths: list[list[float]],
    labels: list[int],
) -> dict[int, int]:
    """Return the true box of each positive prediction, by loops over all pairs."""

    def is_inside(i: int, j: int) -> bool:
        (x, y), t = centres[i], truths[j]
        return t[0] < x < t[2] and t[1] < y < t[3]

    def is_near(i: int, j: int) -> bool:
        (x, y), t = centres[i], truths[j]
        distance = max(abs(x - (t[0] + t[2]) / 2), abs(y - (t[1] + t[3]) / 2))
        return distance < 2.5 * strides[i]

    boxes_of = range(len(truths))
    candidates = [
        i
        for i in range(len(boxes))
        if any(is_inside(i, j) or is_near(i, j) for j in boxes_of)
    ]
    overlaps = {(i, j): iou(boxes[i], truths[j]) for i in candidates for j in boxes_of}
    costs = {
        (i, j): pair_cost(
            classes[i],
            objectness[i],
            labels[j],
            overlaps[i, j],
            is_inside(i, j) and is_near(i, j),
        )
        for i in candidates
        for j in boxes_of
    }
    wanted: dict[int, list[int]] = {}
    for j in boxes_of:
        best = sorted((overlaps[i, j] for i in candidates), reverse=True)[:10]
        count = max(int(sum(best)), 1)
        for i in sorted(candidates, key=lambda i, j=j: costs[i, j])[:count]:
            wanted.setdefault(i, []).append(j)
    return {
        i: js[0] if len(js) == 1 else min(boxes_of, key=lambda j, i=i: costs[i, j])
        for i, js in wanted.items()
    }


def random_case(seed: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    grids = []
    for stride in (8, 16, 32):
        cells = torch.arange(64 // stride)
        grid = torch.cartesian_prod(cells, cells).flip(1)
        grids.append(torch.cat([(grid + 0.5) * stride, 0.0 * grid[:, :1] + stride], 1))
    cells = torch.cat(grids)
    centres, strides = cells[:, :2], cells[:, 2]
    count = int(torch.randint(1, 6, (), generator=g))
    corner = 48 * torch.rand(count, 2, generator=g)
    truths = torch.cat([corner, corner + 6 + 30 * torch.rand(count, 2, generator=g)], 1)
    # Half of the predictions lie near a true box, so that sums of IoUs exceed 1.
    middle = centres + 8 * torch.randn(len(cells), 2, generator=g)
    half = 3 + 10 * torch.rand(len(cells), 2, generator=g)
    boxes = torch.cat([middle - half, middle + half], 1)
    chosen = torch.randint(count, (len(cells),), generator=g)
    close = truths[chosen] + 2 * torch.randn(len(cells), 4, generator=g)
    boxes = torch.where(torch.rand(len(cells), 1, generator=g) < 0.5, close, boxes)
    classes = 2 * torch.randn(len(cells), 4, generator=g)
    objectness = 2 * torch.randn(len(cells), generator=g)
    labels = torch.randint(4, (count,), generator=g)
    return boxes, classes, objectness, centres, strides, truths, labels


def test_it_equals_the_brute_force_matcher_in_200_random_cases() -> None:
    contested = 0
    for seed in range(200):
        # In double precision no two costs are equal by rounding alone.
        *numbers, labels = random_case(seed)
        case = (*(number.double() for number in numbers), labels)
        found = assign(*case)
        expected = brute_force(*(tensor.tolist() for tensor in case))
        matches = zip(found.positive.tolist(), found.matched.tolist(), strict=True)
        assert dict(matches) == expected
        contested += len(expected) > len(labels)
        for i, j, overlap in zip(*found, strict=True):
            exact = iou(case[0][i].tolist(), case[5][j].tolist())
            assert float(overlap) == pytest.approx(exact, abs=1e-5)
    assert contested > 100  # most cases have boxes with several predictions


def test_an_image_without_boxes_has_no_positive_prediction() -> None:
    boxes, classes, objectness, centres, strides, *_ = random_case(0)
    none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    found = assign(boxes, classes, objectness, centres, strides, *none)
    assert len(found.positive) == len(found.matched) == len(found.ious) == 0
