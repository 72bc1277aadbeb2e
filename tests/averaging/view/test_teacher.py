"""A teacher is the averaged model, and nothing else: against deep copies."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

from switch_ema import EMA, SWA, Teacher, constant


def network():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    return Net(body)


class Net(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.drop, self.head = body, nn.Dropout(0.5), nn.Linear(4, 2)

    def forward(self, x, scale=1.0):
        return self.head(self.drop(self.body(x))) * scale


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first, second):
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def moved(model, averager):
    """Let the student go somewhere else, so that the average differs from it."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    averager.update()


def averaging(model=None, **options):
    model = model or network()
    averager = EMA(model, decay=constant(0.75), **options)
    moved(model, averager)
    return model, averager


def test_without_an_average_the_student_teaches_without_gradient():
    model, x = network().eval(), torch.randn(5, 3)
    taught = Teacher(model)(x)
    assert not taught.requires_grad
    assert torch.equal(taught, model(x))


@pytest.mark.parametrize("mode", [False, True])
def test_the_average_teaches_as_a_copy_with_its_weights_would(mode):
    model, averager = averaging()
    x = torch.randn(5, 3)
    copied = averager.averaged_copy().train(mode)
    model.train(mode)
    torch.manual_seed(1)
    expected = copied(x, scale=2.0)
    torch.manual_seed(1)
    taught = averager.call(x, scale=2.0)
    assert torch.equal(taught, expected) and not taught.requires_grad
    assert torch.equal(averager.teacher()(x, part="body"), copied.body(x))
    assert not torch.equal(taught, model(x))


def test_teaching_changes_neither_student_nor_average():
    model, averager = averaging()
    model.train()
    student, average = state_of(model), averager.averaged_state_dict()
    assert averager.call(torch.randn(5, 3)).shape == (5, 2)
    assert same(student, model.state_dict()), "statistics stay as they were"
    assert same(average, averager.averaged_state_dict())


def test_gradients_of_a_mean_teacher_are_those_with_a_copied_teacher():
    """With dropout and batch statistics; the targets are computed in between."""
    gradients = []
    for is_copied in (True, False):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ema = EMA(model, optimizer, decay=constant(0.9))
        copied = copy.deepcopy(model)
        generator = torch.Generator().manual_seed(1)
        found = []
        for step in range(4):
            x, noise = torch.randn(2, 6, 3, generator=generator)
            torch.manual_seed(step)
            prediction = model(x + noise)
            copied.load_state_dict(ema.averaged_tensors(), strict=False)
            with torch.no_grad():
                target = copied(x) if is_copied else ema.call(x)
            optimizer.zero_grad()
            mse_loss(prediction, target).backward()
            found += [p.grad.clone() for p in model.parameters()]
            optimizer.step()
        gradients.append((found, state_of(model)))
    (expected, state), (found, own) = gradients
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert expected[-1].abs().sum() > 0 and same(state, own)


def test_the_mode_of_the_teacher_can_be_its_own():
    model, averager = averaging()
    model.train()
    model.body.eval()
    x = torch.randn(5, 3)
    taught = averager.teacher(training=False)(x)
    assert torch.equal(taught, averager.averaged_copy().eval()(x))
    assert model.drop.training and not model.body[1].training
    with pytest.raises(RuntimeError):
        averager.teacher(training=False)(torch.randn(5, 2))  # of a wrong width
    assert model.drop.training


def test_parts_that_are_not_averaged_are_the_students():
    model, averager = averaging(exclude="body")
    model.eval()
    x = torch.randn(5, 3)
    assert torch.equal(averager.teacher()(x, part="body"), model.body(x))


def test_until_there_is_an_average_the_student_teaches():
    model, x = network().eval(), torch.randn(5, 3)
    averager = SWA(model, start=1)
    moved(model, averager)
    averager.end_epoch()
    assert torch.equal(averager.call(x), model(x))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_inside_averaged_it_is_still_the_average(dtype):
    model, averager = averaging(dtype=dtype)
    model.eval()
    x = torch.randn(5, 3)
    outside = averager.call(x)
    assert outside.dtype == torch.float32
    with averager.averaged():
        assert torch.equal(averager.call(x), outside)
        assert torch.equal(model(x), outside)


def test_wrapped_models():
    inner = network()
    inner.body = nn.DataParallel(inner.body)
    _, averager = averaging(nn.DataParallel(inner))
    inner.eval()
    x = torch.randn(5, 3)
    assert torch.equal(averager.call(x), averager.averaged_copy()(x))


def test_sharded_models_are_refused():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Linear(2, 2)
        fully_shard(model)
        with pytest.raises(TypeError, match=r"run the average inside averaged\(\)"):
            EMA(model).call(torch.ones(1, 2))
    finally:
        dist.destroy_process_group()
