"""What goes wrong in real trainings, and does no harm, whatever the method."""

import pytest
import torch

from tests.averaging.helpers import (
    Network,
    assert_same,
    batches,
    copy_of,
    epoch,
    loss_of,
    network,
    sgd,
    train_step,
    trained,
)

pytestmark = pytest.mark.usefixtures("arithmetic")


def test_a_training_whose_steps_are_not_counted_is_not_thrown_away(make):
    """With an optimizer made anew, or update() forgotten."""
    model, optimizer = network(), None
    averager = make(model, optimizer)
    optimizer = sgd(model)
    for batch in batches(3):
        train_step(model, optimizer, batch)
    trained = copy_of(model.state_dict())
    if averager.needs_steps:
        with pytest.warns(UserWarning, match="no step was counted in this epoch"):
            assert not averager.end_epoch()
    else:
        averager.end_epoch()
    assert averager.epochs == 1
    assert_same(model.state_dict(), trained)


def test_validation_in_inference_mode_leaves_tensors_that_can_be_trained(make):
    for flat in (False, True):
        model, optimizer, averager = trained(make, flat=flat)
        model.double()
        with torch.inference_mode(), averager.averaged():
            model(torch.zeros(2, 1, 5, 5, dtype=torch.float64))
        assert not any(parameter.is_inference() for parameter in model.parameters())
        epoch(model, optimizer, averager, seed=3, dtype=torch.float64)
        averager.load_state_dict(averager.state_dict())


def test_buffers_that_come_or_grow_begin_at_their_present_values(make):
    """As caches do, which models make in their first forward pass."""

    class Cached(Network):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", None)

        def forward(self, x):
            if self.cache is None or len(self.cache) < len(x):
                self.cache = torch.ones(len(x))
            return super().forward(x)

    model = Cached()
    optimizer = sgd(model)
    averager = make(model, optimizer)
    for count in (4, 8, 6, 16):
        loss_of(
            model, (torch.randn(count, 1, 5, 5), torch.zeros(count).long())
        ).backward()
        optimizer.step()
        average = averager.averaged_state_dict()
        assert len(average["cache"]) == len(model.cache)
        assert average["cache"].tolist() == [1.0] * len(model.cache)


def test_recalibrating_needs_an_average(make):
    model = network()
    averager = make(model)
    before = copy_of(model.state_dict())
    if not averager.has_average:
        with pytest.raises(RuntimeError, match="no average to recalibrate yet"):
            averager.recalibrate([torch.randn(4, 1, 5, 5)])
    else:
        averager.recalibrate([torch.randn(4, 1, 5, 5)])
    assert_same(model.state_dict(), before)
