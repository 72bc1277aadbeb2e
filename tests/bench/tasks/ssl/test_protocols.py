"""Protocols on features whose worth is known."""

import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from switch_ema.bench.tasks.ssl import protocols
from switch_ema.bench.tasks.ssl.protocols import (
    Labelled,
    linear_probe,
    nearest_neighbours,
)


def clusters(spread=0.5, count=300):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 10, generator=generator)
    y = torch.randint(3, (2 * count,), generator=generator)
    x = centres[y] + spread * torch.randn(2 * count, 10, generator=generator)
    return Labelled(x[:count], y[:count], x[count:], y[count:], 3)


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
    whole = linear_probe(data)
    monkeypatch.setattr(protocols, "AT_ONCE", 70)  # seven examples at a time
    assert linear_probe(data) == whole


def test_the_first_of_what_is_labelled():
    data = clusters()
    part = data.first(20, 10)
    assert torch.equal(part.x, data.x[:20]) and torch.equal(part.y, data.y[:20])
    assert len(part.x_test) == len(part.y_test) == 10
