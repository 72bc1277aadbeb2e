"""Protocols on features whose worth is known; what fine-tuning learns and leaves."""

import random

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from switch_ema.bench.optimizers.catalog import create_optimizer
from switch_ema.bench.spec import Spec
from switch_ema.zoo.data.vision import VisionSet
from switch_ema.zoo.tasks.ssl import evaluation
from switch_ema.zoo.tasks.ssl.evaluation import (
    Labelled,
    LinearProbe,
    fine_tune,
    fine_tune_by_procedure,
    nearest_neighbours,
)
from switch_ema.zoo.tasks.ssl.pretraining import create_encoder


def clusters(spread=0.5, count=300):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 10, generator=generator)
    y = torch.randint(3, (2 * count,), generator=generator)
    x = centres[y] + spread * torch.randn(2 * count, 10, generator=generator)
    return Labelled(x[:count], y[:count], x[count:], y[count:], 3)


def linear_probe(data, at_once=100):
    """Fit a probe part by part, and measure it."""
    probe = LinearProbe(data.x.shape[1], data.classes)
    for x, y in zip(data.x.split(at_once), data.y.split(at_once), strict=True):
        probe.add(x, y)
    return data.accuracy(probe.predict(data.x_test))


def test_the_probe_is_scikit_learns_ridge_on_standardised_features():
    data = clusters(spread=2.0)
    scaler = StandardScaler().fit(data.x.numpy())
    # torch divides the variance by n - 1, scikit-learn by n.
    scaler.scale_ *= (300 / 299) ** 0.5
    targets = torch.eye(3)[data.y].numpy()
    ridge = Ridge(alpha=1e-3 * 300).fit(scaler.transform(data.x.numpy()), targets)
    found = ridge.predict(scaler.transform(data.x_test.numpy())).argmax(1)
    assert linear_probe(data) == data.accuracy(torch.from_numpy(found))
    assert 40 < linear_probe(data) < 95


def test_neighbours_are_scikit_learns_by_cosine():
    data = clusters(spread=2.0)

    def weights(distance):
        return torch.exp(-torch.from_numpy(distance) / 0.1).numpy()

    peer = KNeighborsClassifier(20, metric="cosine", weights=weights)
    peer.fit(data.x.numpy(), data.y.numpy())
    found = torch.from_numpy(peer.predict(data.x_test.numpy()))
    assert nearest_neighbours(data) == pytest.approx(data.accuracy(found), abs=0.4)


@pytest.mark.parametrize("measure", [linear_probe, nearest_neighbours])
def test_good_features_are_found_good_and_collapsed_ones_bad(measure):
    data = clusters()
    assert measure(data) > 95
    flat = Labelled(
        torch.ones(300, 10), data.y, torch.ones(300, 10), data.y_test, data.classes
    )
    assert measure(flat) < 50


def test_many_features_are_treated_part_by_part(monkeypatch):
    data = clusters(spread=2.0)
    whole = linear_probe(data, at_once=1000)
    monkeypatch.setattr(evaluation, "AT_ONCE", 70)  # seven test examples at a time
    assert linear_probe(data, at_once=7) == whole


def test_a_probe_ignores_features_that_rounding_alone_changes():
    data = clusters(spread=2.0)
    whole = linear_probe(data)

    def constant(x):
        return torch.cat([x, torch.full((len(x), 1), 1234.567)], 1)

    more = Labelled(constant(data.x), data.y, constant(data.x_test), data.y_test, 3)
    assert linear_probe(more) == whole
    shifted = Labelled(data.x + 100, data.y, data.x_test + 100, data.y_test, 3)
    assert linear_probe(shifted) == pytest.approx(whole, abs=0.4)


def test_the_first_of_what_is_labelled():
    data = clusters()
    part = data.first(20, 10)
    assert torch.equal(part.x, data.x[:20]) and torch.equal(part.y, data.y[:20])
    assert len(part.x_test) == len(part.y_test) == 10


def test_fine_tuning_learns_and_leaves_everything_as_it_was():
    torch.manual_seed(0)
    encoder = create_encoder("resnet18", scale="small", channels=1, image_size=8)
    encoder.eval()
    before = {name: t.clone() for name, t in encoder.state_dict().items()}
    y = torch.arange(200) % 2
    x = torch.randn(200, 1, 8, 8)
    x[:, 0, :4] += y[:, None, None]  # the upper half is brighter in one class
    state = torch.get_rng_state()
    data = Labelled(x[:150], y[:150], x[150:], y[150:], 2)
    with torch.no_grad():
        found = fine_tune(encoder, data, epochs=8, seed=0, batch=30)
        again = fine_tune(encoder, data, epochs=8, seed=0, batch=30)
    assert found == again > 75
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[n]) for n, t in encoder.state_dict().items())
    assert not encoder.training


def coloured(count):
    """Red and green images, easy to tell apart."""
    y = torch.arange(count) % 2
    x = torch.randint(0, 60, (count, 3, 16, 16), dtype=torch.uint8)
    x[torch.arange(count), y] += 150
    return x, y


def test_fine_tuning_by_the_procedure_learns_and_leaves_random_numbers_alone():
    torch.manual_seed(0)
    half = torch.full((3, 1, 1), 127.0)
    data = VisionSet(*coloured(64), *coloured(40), 2, half, half, mirrored=True)

    def tuned():
        torch.manual_seed(1)
        network = create_encoder(
            "resnet18", scale="small", channels=3, image_size=16, drop_path=0.1
        )
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
        with torch.no_grad():
            found = fine_tune_by_procedure(
                network,
                data,
                epochs=6,
                resolution=16,
                batch=8,
                seed=0,
                workers=0,
                lr=2e-3,
            )
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert np.array_equal(np.random.get_state()[1], states[2])
        return found

    assert tuned() == tuned() > 80


def test_layer_decay_slows_early_layers_by_the_factor():
    encoder = create_encoder("deit-t", scale="small", channels=1, image_size=8)
    encoder.reset_classifier(2)
    optimizer = create_optimizer(Spec("adamw", {"lr": 1.0}), encoder, layer_decay=0.65)
    rates = sorted({round(group["lr"], 6) for group in optimizer.param_groups})
    # Patches, two blocks, and the head.
    assert rates == [round(0.65**power, 6) for power in (3, 2, 1, 0)]
