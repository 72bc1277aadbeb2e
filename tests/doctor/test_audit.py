"""The audit finds an average that leaves its rule, in any library."""

import copy
import warnings

import pytest
import torch
from torch import nn

import switch_ema
from switch_ema import EMA, SwitchEMA, constant
from tests.doctor.averages import LIBRARIES, network


def audited(average, model, steps=60, after_step=None, **options):
    """Train, update the average, and return the audit."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"every": 5, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watch = switch_ema.audit(model, optimizer, average, **options)
        for step in range(steps):
            nn.functional.mse_loss(
                model(torch.randn(8, 8)), torch.randn(8, 3)
            ).backward()
            optimizer.step()
            optimizer.zero_grad()
            if after_step is not None:
                after_step(step)
    watch.detach()
    return watch


def names(watch):
    return [finding.fault.name for finding in watch.report()]


@pytest.mark.parametrize("library", LIBRARIES)
def test_healthy_averages_have_no_findings(library):
    model = network()
    average = LIBRARIES[library](model, 0.98)
    watch = audited(
        average.inner, model, after_step=lambda step: average.update(model), decay=0.98
    )
    assert watch.report() == []
    assert watch.decays[-1] == pytest.approx(0.98, abs=1e-4)


def test_switches_and_warm_ups_are_no_faults():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = SwitchEMA(model, optimizer, decay=0.99)
    watch = switch_ema.audit(model, optimizer, average, decay=0.99, every=3)
    for step in range(90):
        nn.functional.mse_loss(model(torch.randn(8, 8)), torch.randn(8, 3)).backward()
        optimizer.step()
        if step % 10 == 9:
            average.end_epoch()
    assert watch.report() == []


def lerp(average, model, weight):
    with torch.no_grad():
        pairs = zip(average.parameters(), model.parameters(), strict=True)
        for shadow, value in pairs:
            shadow.lerp_(value.to(shadow.dtype), weight)


@pytest.mark.parametrize(
    ("weight", "fault"),
    [(0.0, "frozen"), (-0.02, "moving away"), (0.999, "inverted decay")],
)
def test_faults_are_named(weight, fault):
    model = network()
    average = copy.deepcopy(model)
    watch = audited(average, model, 150, lambda step: lerp(average, model, weight))
    assert names(watch) == [fault]


def test_updates_per_micro_batch_are_another_decay():
    model = network()
    average = copy.deepcopy(model)

    def update(step):
        for _ in range(4):
            lerp(average, model, 0.02)

    watch = audited(average, model, 600, update, decay=0.98)
    assert names(watch) == ["other decay"]


def test_half_precision_stalls():
    model = network()
    average = copy.deepcopy(model).to(torch.bfloat16)
    watch = audited(average, model, 150, lambda step: lerp(average, model, 0.001))
    assert "stalled" in names(watch)


def test_it_warns_once_and_at_once():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = EMA(model, decay=constant(0.9))  # nobody calls update()
    switch_ema.audit(model, optimizer, average)
    loss = lambda: model(torch.randn(8, 8)).square().mean()  # noqa: E731
    with pytest.warns(UserWarning, match="frozen: it did not move") as caught:
        for _ in range(60):
            loss().backward()
            optimizer.step()
    assert len(caught) == 1


def test_a_model_with_other_names_is_reported():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.warns(UserWarning, match="names"):
        watch = switch_ema.audit(model, optimizer, nn.Linear(2, 2))
    for _ in range(3):
        model(torch.randn(8, 8)).sum().backward()
        optimizer.step()
    assert names(watch) == ["names"]


def test_channels_last_weights_are_followed():
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64, 3))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    average = EMA(model, optimizer, decay=constant(0.9))
    watch = switch_ema.audit(model, optimizer, average, decay=0.9)
    for _ in range(10):
        model(torch.randn(2, 64, 3, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert watch.report() == []
    assert watch.decays[-1] == pytest.approx(0.9, abs=1e-4)


def test_bad_values():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.raises(ValueError, match="average must be a module"):
        switch_ema.audit(model, optimizer, 3)
    with pytest.raises(ValueError, match="every"):
        switch_ema.audit(model, optimizer, model, every=0)
