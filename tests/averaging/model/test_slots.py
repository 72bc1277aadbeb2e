"""Which tensors are averaged, under which names."""

import copy

import pytest
import torch
from torch import nn

from switch_ema import EMA, SwitchEMA, constant, load_weights, unwrap
from tests.averaging.helpers import assert_same, batches, network, sgd, train_step


def names(averager) -> set[str]:
    return set(averager.state_dict()["shadow"])


ALL = {
    "scale",
    "stem.weight",
    "stem.bias",
    "norm.weight",
    "norm.bias",
    "norm.running_mean",
    "norm.running_var",
    "norm.num_batches_tracked",
    "body.weight",
    "body.bias",
    "head.bias",
}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ALL),
        ({"include": "stem.weight"}, {"stem.weight"}),
        ({"include": "stem"}, {"stem.weight", "stem.bias"}),
        ({"include": "*.bias"}, {n for n in ALL if n.endswith(".bias")}),
        ({"include": ["scale", "stem.*"]}, {"scale", "stem.weight", "stem.bias"}),
        ({"include": "head.weight"}, {"body.weight"}),  # by its other name
        ({"include": lambda name: "norm" in name}, {n for n in ALL if "norm" in n}),
        ({"include": lambda name, t: t.ndim == 4}, {"stem.weight"}),
        ({"include": lambda name, keep=("scale",): name in keep}, {"scale"}),
        ({"exclude": "norm"}, {n for n in ALL if "norm" not in n}),
        (
            {"include": "norm", "exclude": "*running*"},
            {n for n in ALL if "norm" in n} - {"norm.running_mean", "norm.running_var"},
        ),
    ],
)
def test_filters(filters, expected):
    assert names(EMA(network(), **filters)) == expected


def test_trainable_is_what_requires_a_gradient_and_the_buffers_beside_it():
    model = network().requires_grad_(False)
    with pytest.raises(ValueError, match="no tensor of the model: 'trainable'"):
        EMA(model, include="trainable")
    model.stem.bias.requires_grad_(True)
    ema = EMA(model, include="trainable")
    assert names(ema) == {"stem.bias"}
    model.norm.bias.requires_grad_(True)
    ema.refresh()
    buffers = {n for n in ALL if n.startswith("norm.") and n != "norm.weight"}
    assert names(ema) == {"stem.bias"} | buffers
    both = EMA(model, include=["trainable", "scale"], exclude="norm")
    assert names(both) == {"stem.bias", "scale"}


def test_live_tensors_are_those_of_the_average_also_while_it_is_shown():
    model = network()
    optimizer = sgd(model)
    ema = EMA(model, optimizer, decay=constant(0.9), include="stem")
    train_step(model, optimizer, next(iter(batches(1))))
    live = {"stem.weight": model.stem.weight, "stem.bias": model.stem.bias}
    live = {name: tensor.detach().clone() for name, tensor in live.items()}
    with ema.averaged():
        assert_same(ema.live_tensors(), live)
    assert_same(ema.live_tensors(), live)
    average = ema.averaged_tensors()
    assert not torch.equal(average["stem.weight"], live["stem.weight"])


def test_tensors_that_are_left_out_keep_their_live_values():
    model = network()
    optimizer = sgd(model)
    ema = EMA(model, optimizer, decay=constant(0.9), include="stem")
    for batch in batches(3):
        train_step(model, optimizer, batch)
    average, live = ema.averaged_state_dict(), ema.live_state_dict()
    assert torch.equal(average["body.weight"], live["body.weight"])
    assert not torch.equal(average["stem.weight"], live["stem.weight"])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"include": "steam"}, "include matches no tensor of the model: 'steam'"),
        ({"exclude": ["stem", "heed"]}, "exclude matches no tensor .*: 'heed'"),
        ({"include": lambda name: False}, "include matches no tensor"),
        ({"exclude": "*"}, "exclude leaves no tensor"),
    ],
)
def test_filters_that_match_nothing_are_refused(filters, message):
    with pytest.raises(ValueError, match=message):
        EMA(network(), **filters)


def test_buffers_averaged_or_copied_integers_always_copied():
    for policy in ("average", "copy"):
        model = network()
        optimizer = sgd(model)
        ema = EMA(model, optimizer, decay=constant(0.9), buffers=policy)
        for batch in batches(3):
            train_step(model, optimizer, batch)
        average, live = ema.averaged_state_dict(), ema.live_state_dict()
        same = torch.equal(average["norm.running_mean"], live["norm.running_mean"])
        assert same is (policy == "copy")
        assert average["norm.num_batches_tracked"] == 3


def test_a_switch_does_not_turn_counters_or_copied_buffers_back():
    model = network()
    optimizer = sgd(model)
    sema = SwitchEMA(
        model, optimizer, decay=constant(0.9), buffers="copy", update_every=2
    )
    for batch in batches(3):  # the third step is not averaged
        train_step(model, optimizer, batch)
    mean = model.norm.running_mean.clone()
    sema.end_epoch()
    assert model.norm.num_batches_tracked == 3
    assert torch.equal(model.norm.running_mean, mean)


def test_frozen_parameters_follow_once_unfrozen():
    model = network()
    model.stem.requires_grad_(False)
    optimizer = sgd(model)
    ema = EMA(model, optimizer, decay=constant(0.5))
    start = model.stem.weight.clone()
    train_step(model, optimizer, next(batches(1)))
    assert torch.equal(ema.averaged_state_dict()["stem.weight"], start)
    model.stem.requires_grad_(True)
    train_step(model, optimizer, next(batches(1, seed=2)))
    expected = 0.5 * start + 0.5 * model.stem.weight
    torch.testing.assert_close(ema.averaged_state_dict()["stem.weight"], expected)


def test_new_parameters_need_a_refresh_and_say_so():
    model = network()
    optimizer = sgd(model)
    ema = EMA(model, optimizer, decay=constant(0.5))
    train_step(model, optimizer, next(batches(1)))
    kept = ema.averaged_state_dict()["stem.weight"]
    model.extra = nn.Linear(2, 2)
    for call in (optimizer.step, ema.end_epoch, lambda: ema.averaged().__enter__()):
        with pytest.raises(
            RuntimeError, match=r"new: extra.bias, extra.weight.*refresh"
        ):
            call()
    assert ema.steps == 1
    ema.refresh()
    average = ema.averaged_state_dict()
    assert torch.equal(average["extra.weight"], model.extra.weight)
    assert torch.equal(average["stem.weight"], kept)  # what was averaged stays


def test_replaced_and_removed_modules_need_a_refresh():
    model = network()
    ema = EMA(model)
    model.body = nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="refresh"):
        ema.update()
    ema.refresh()
    ema.update()
    del model.scale
    with pytest.raises(RuntimeError, match=r"gone: scale\).*refresh"):
        ema.end_epoch()


def test_a_replaced_layer_of_the_same_shape_begins_its_own_average():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    ema = EMA(model, decay=constant(0.5))
    kept = ema.averaged_state_dict()
    model[1] = nn.Linear(2, 3)
    nn.init.constant_(model[1].weight, 50.0)
    with torch.no_grad():
        model[0].weight.add_(1)
    ema.refresh()
    average = ema.averaged_state_dict()
    assert torch.equal(average["0.weight"], kept["0.weight"])
    assert torch.equal(average["1.weight"], model[1].weight)


def test_a_layer_that_takes_over_tensors_keeps_their_average():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = EMA(model, decay=constant(0.5))
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_mean):
            tensor.add_(1)
    kept = ema.averaged_state_dict()
    model, ema = copy.deepcopy((model, ema))
    model[1] = nn.SyncBatchNorm.convert_sync_batchnorm(model[1])
    ema.refresh()
    average = ema.averaged_state_dict()
    assert all(torch.equal(average[name], kept[name]) for name in kept)


def test_resized_parameters_need_a_refresh():
    model = nn.Linear(3, 2)
    ema = EMA(model, decay=constant(0.5))
    model.weight.data = torch.zeros(5, 3)
    with pytest.raises(RuntimeError, match=r"weight was \[2, 3\].*is \[5, 3\] now"):
        ema.averaged_state_dict()


def test_buffers_that_a_module_replaces_are_followed():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1.0
            return self.weight * x

    model = Counter()
    ema = EMA(model, decay=constant(0.5), buffers="average")
    for _ in range(2):
        model(torch.ones(1))
        ema.update()
    # 0.5*0 + 0.5*1 = 0.5;  0.5*0.5 + 0.5*2 = 1.25
    assert ema.averaged_state_dict()["seen"].item() == 1.25


@pytest.mark.parametrize(
    "wrap", [torch.compile, nn.DataParallel], ids=["compile", "dp"]
)
def test_names_do_not_depend_on_wrappers(wrap):
    inner = network()
    model = wrap(inner)
    assert unwrap(model) is inner
    ema = EMA(model)
    assert names(ema) == ALL
    assert list(ema.averaged_state_dict()) == list(inner.state_dict())
    plain = EMA(network())
    plain.load_state_dict(ema.state_dict())


def test_names_do_not_depend_on_wrapped_parts():
    model = network()
    model.body = torch.compile(model.body)
    ema = EMA(model)
    assert names(ema) == ALL
    other = network(seed=4)
    other.load_state_dict(ema.averaged_state_dict())
    back = network(seed=5)
    back.body = torch.compile(back.body)
    load_weights(back, ema.averaged_state_dict())
    assert torch.equal(back.stem.weight, model.stem.weight)
    assert torch.equal(back.head.weight, model.head.weight)


def test_a_users_own_module_called_module_keeps_its_name():
    model = nn.ModuleDict({"module": nn.Linear(1, 1)})
    assert names(EMA(model)) == {"module.weight", "module.bias"}


def test_weights_tied_by_memory_are_averaged_once():
    model = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(2)])
    model[1].weight.data = model[0].weight.data
    ema = EMA(model, decay=constant(0.9))
    live = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    ema.update()
    for name in ("0.weight", "1.weight"):
        moved = ema.averaged_state_dict()[name] - live
        torch.testing.assert_close(moved, torch.full((2, 2), 0.1))
    with ema.averaged():
        pass
    torch.testing.assert_close(model[0].weight, live + 1, rtol=0, atol=0)
