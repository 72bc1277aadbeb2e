"""Every registered task keeps the contract of Task."""

import math
import random

import numpy as np
import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.task import SeedBatchTask
from switch_ema.zoo.data.byte_images import ByteImages
from switch_ema.zoo.tasks.registry import TASKS
from tests.zoo.tasks.helpers import (
    SMALL,
    measure,
    same,
    seeded_model,
    small_task,
    tensors,
    train,
)

TEXTS = ("lm", "awd-lstm", "bert-lm")
"""Tasks on running text, which is not drawn but cut: tested beside the tasks."""


def test_every_task_is_tested():
    assert set(SMALL) == set(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_learns_and_measures(name):
    task = small_task(name)
    model, losses = train(task, 6)
    # A queue holds noise at first, which is easy to tell from images.
    begun = 1 if getattr(task, "memory", ()) else 0
    assert losses[-1] < losses[begun]
    measured = measure(task, model)
    assert set(measured) == {metric.name for metric in task.metrics}
    for value in measured.values():
        values = value if isinstance(task, SeedBatchTask) else [value]
        assert len(values) == 1
        assert all(type(v) is float and math.isfinite(v) for v in values)


@pytest.mark.parametrize("name", TASKS)
def test_classifiers_know_the_accuracy_of_chance(name):
    """So that a training that learned nothing is named before any verdict."""
    task = small_task(name)
    if task.metrics[0].name == "accuracy":
        ((predictor, values),) = task.trivial().items()
        assert predictor == "always predicting the most frequent class"
        assert list(values) == ["accuracy"] and 5 < values["accuracy"] < 80


@pytest.mark.parametrize("name", TASKS)
def test_seed_decides_data_batches_and_weights(name):
    def everything(seed, noise):
        torch.manual_seed(noise)  # what came before must not matter
        task = small_task(name, seed)
        loaders = [task.train_loader(epoch) for epoch in (0, 1)]
        batches = [tensors(batch) for loader in loaders for batch in loader]
        assert len(batches) == sum(len(loader) for loader in loaders)
        weights = list(seeded_model(task).state_dict().values())
        first, second = batches[: len(loaders[0])], batches[len(loaders[0]) :]
        return first, second, weights

    one, again, other = everything(0, 1), everything(0, 2), everything(1, 3)
    for mine, theirs in zip(one[0] + one[1], again[0] + again[1], strict=True):
        assert same(mine, theirs)
    assert same(one[2], again[2])
    assert not same(one[0][0], other[0][0])
    assert not same(one[0][0], one[1][0]), "each epoch has its own order"
    shapes = [weight.shape for weight in one[2]] == [w.shape for w in other[2]]
    assert not (shapes and same(one[2], other[2]))


@pytest.mark.parametrize("name", TASKS)
def test_constructing_leaves_the_global_random_numbers_alone(name):
    def state():
        return (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.initial_seed(),
        )

    before, drawn = state(), torch.get_rng_state()
    small_task(name, 5)
    assert state() == before
    assert torch.equal(torch.get_rng_state(), drawn)


DETECTORS = ("retinanet", "mask-rcnn", "cascade-mask-rcnn", "yolox")
"""Their images lie in files; their own tests look at the split."""


@pytest.mark.parametrize(
    "name",
    [name for name in TASKS if name not in (*TEXTS, *DETECTORS, "moving-mnist", "age")],
)
def test_validation_is_a_fifth_of_the_training_data(name):
    test, validation = small_task(name), small_task(name, split="validation")
    if isinstance(test, SeedBatchTask):
        whole, test_x, x, held = (
            part[0] for part in (test.x, test.x_eval, validation.x, validation.x_eval)
        )
    else:
        whole, test_x, x, held = test.x, test.x_eval, validation.x, validation.x_eval
    if isinstance(whole, ByteImages):
        whole, test_x, x, held = (part.floats() for part in (whole, test_x, x, held))
    assert len(held) == len(whole) // 5
    assert len(x) + len(held) == len(whole)

    def rows(images):
        return sorted(tuple(row) for row in images.flatten(1).tolist())

    assert rows(torch.cat([x, held])) == rows(whole)
    assert not set(rows(held)) & set(rows(x))
    assert not set(rows(held)) & set(rows(test_x))


@pytest.mark.parametrize("name", TASKS)
def test_other_splits_are_refused(name):
    with pytest.raises(UsageError, match="split must be 'test' or 'validation'"):
        small_task(name, split="train")
