"""Trainings with a PostHocEMA, and what their averages are by definition."""

from functools import partial

import torch

from switch_ema import Steps
from switch_ema.averaging.methods.posthoc import PostHocEMA
from tests.averaging.helpers import batches, copy_of, network, sgd, train_step

Posthoc = partial(PostHocEMA, every=Steps(5))


def train(folder, steps=60, model_dtype=torch.float32, **options):
    """Train for real; return the averager and the live weights after each step."""
    model = network(dtype=model_dtype)
    optimizer = sgd(model)
    averager = Posthoc(model, optimizer, folder=folder, **options)
    lives = []
    for batch in batches(steps, dtype=model_dtype):
        train_step(model, optimizer, batch)
        lives.append(copy_of(model.state_dict()))
    return averager, lives


def weighted(lives, profile):
    """The average by its definition: a weighted sum of all live weights."""
    t = len(lives)
    weights = profile(torch.arange(1, t + 1, dtype=torch.float64), t)
    weights = (weights / weights.sum()).tolist()
    return {
        name: sum(
            w * live[name].double() for w, live in zip(weights, lives, strict=True)
        )
        for name in lives[0]
        if lives[0][name].is_floating_point()
    }


def distance(state, expected):
    """Relative L2 distance over all averaged tensors."""
    gaps = [(state[name].double() - value).norm() for name, value in expected.items()]
    norms = [value.norm() for value in expected.values()]
    return (torch.stack(gaps).norm() / torch.stack(norms).norm()).item()


def steps_in(folder):
    return sorted({int(path.name[4:13]) for path in folder.glob("*.safetensors")})
