"""Methods that compare views: their losses by hand, their heads and their queue."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.loading import create_task
from switch_ema.zoo.tasks.ssl.pretraining import create_encoder, xavier_
from switch_ema.zoo.tasks.ssl.two_views import TwoViewModel

NAMES = ("simclr", "moco-v2", "byol", "barlow-twins", "moco-v3")


def made(name, **options):
    given = ",".join(f"{key}={value}" for key, value in options.items())
    task = create_task(f"{name}:size=40,batch=8,network=resnet18,{given}", (0,))
    torch.manual_seed(0)
    model = task.model()
    return task, model, next(iter(task.train_loader(0)))


def embedded(model, views):
    """What the projector and the predictor make of the views, and its targets."""
    projections = [model.embedder(view) for view in views]
    predictions = [model.predictor(projection) for projection in projections]
    return [p.detach() for p in projections], [p.detach() for p in predictions]


def test_simclr_finds_the_other_view_among_all_others():
    task, model, views = made("simclr")
    (first, second), _ = embedded(model, views)
    z = normalize(torch.cat([first, second]), dim=1)
    total = 0.0
    for i in range(16):
        other = (i + 8) % 16
        scores = [(z[i] @ z[j]).item() / 0.1 for j in range(16) if j != i]
        own = (z[i] @ z[other]).item() / 0.1
        total += math.log(sum(map(math.exp, scores))) - own
    assert task.loss(model, views).item() == pytest.approx(total / 16, rel=1e-4)


def test_barlow_twins_wants_the_identity_as_correlation():
    task, model, views = made("barlow-twins")
    (first, second), _ = embedded(model, views)
    a, b = ((z - z.mean(0)) / z.std(0, unbiased=False) for z in (first, second))
    correlation = (a.T @ b / 8).double()
    expected = 0.0
    for i in range(64):
        for j in range(64):
            value = correlation[i, j].item()
            expected += (value - 1) ** 2 if i == j else 5.1e-3 * value**2
    assert task.loss(model, views).item() == pytest.approx(expected, rel=1e-2)


def test_byol_is_the_squared_distance_of_unit_vectors():
    task, model, views = made("byol")
    targets, predictions = embedded(model, views)
    expected = 0.0
    for prediction, target in zip(predictions, reversed(targets), strict=True):
        gap = normalize(prediction, dim=1) - normalize(target, dim=1)
        expected += gap.square().sum(1).mean().item()
    assert task.loss(model, views).item() == pytest.approx(expected, rel=1e-4)


def test_moco_v3_is_the_scaled_cross_entropy_of_both_directions():
    task, model, views = made("moco-v3")
    targets, predictions = embedded(model, views)
    expected = 0.0
    for q, k in zip(predictions, reversed(targets), strict=True):
        scores = (normalize(q, dim=1) @ normalize(k, dim=1).T / 0.2).tolist()
        for i, row in enumerate(scores):
            lost = math.log(sum(map(math.exp, row))) - row[i]
            expected += 2 * 0.2 * lost / len(scores)
    assert task.loss(model, views).item() == pytest.approx(expected, rel=1e-4)


def test_the_last_norms_of_moco_v3_scale_nothing():
    _, model, _ = made("moco-v3")
    for part in (model.embedder.projector, model.predictor):
        first, *_, last = [m for m in part.modules() if isinstance(m, nn.BatchNorm1d)]
        assert first.affine and not last.affine


@pytest.mark.parametrize(("separate", "qkv"), [(False, 4 * 48), (True, 2 * 48)])
def test_xavier_counts_queries_keys_and_values_as_one_layer_or_three(separate, qkv):
    """Uniform in +-sqrt(6 / (inputs + outputs)); the usual deviation is 0.02."""
    vit = create_encoder("deit-s", scale="small", channels=3, image_size=16)
    torch.manual_seed(0)
    xavier_(vit, separate=separate)
    block = vit.blocks[0]
    patch = vit.patch_embed.proj.weight.flatten(1)
    for weight, fan in (
        (block.attn.qkv.weight, qkv),
        (block.attn.proj.weight, 2 * 48),
        (patch, sum(patch.shape)),
    ):
        bound = math.sqrt(6 / fan)
        assert 0.9 * bound < weight.abs().max() <= bound
    assert not block.attn.qkv.bias.any()


def test_moco_v2_contrasts_with_the_queue_as_it_was_before():
    task, model, views = made("moco-v2")
    old = model.queue.memory_bank.bank.clone()
    (first, second), _ = embedded(model, views)
    q, k = normalize(first, dim=1), normalize(second, dim=1)
    expected = 0.0
    for i in range(8):
        scores = [(q[i] @ k[i]).item() / 0.2, *((old @ q[i]) / 0.2).tolist()]
        expected += (math.log(sum(map(math.exp, scores))) - scores[0]) / 8
    assert task.loss(model, views).item() == pytest.approx(expected, rel=1e-4)


def test_the_queue_replaces_its_oldest_entries_in_turn():
    task, model, _ = made("moco-v2")
    bank = model.queue.memory_bank
    assert bank.bank.shape == (16, 64)  # two batches
    initial, keys = bank.bank.clone(), []
    for epoch in range(2):
        for views in task.train_loader(epoch):
            with torch.no_grad():
                keys.append(normalize(model.embedder(views[1]), dim=1))
            task.loss(model, views)
            # The n-th batch is in place n modulo 2, until the next one comes there.
            for index in range(max(len(keys) - 2, 0), len(keys)):
                place = index % 2 * 8
                torch.testing.assert_close(bank.bank[place : place + 8], keys[index])
            filled = 8 * len(keys)
            assert torch.equal(bank.bank[filled:], initial[filled:])
    assert len(keys) == 10


def test_evaluating_the_loss_without_gradient_leaves_the_queue_alone():
    task, model, views = made("moco-v2")
    before = model.queue.memory_bank.bank.clone()
    with torch.no_grad():
        task.loss(model, views)
    assert torch.equal(model.queue.memory_bank.bank, before)


@pytest.mark.parametrize("name", ["moco-v2", "byol", "moco-v3"])
def test_no_gradient_flows_through_the_teacher(name):
    task, model, views = made(name)
    assert not task.teacher(model)(views[0], part="embedder").requires_grad
    task.loss(model, views).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_is_left_without_heads(name):
    task, model, views = made(name)
    assert isinstance(unwrap(model), TwoViewModel)
    assert task.encoder_of(model)(views[0]).shape == (8, 64)


def test_moco_v3_does_not_train_the_patches_of_a_transformer():
    task = create_task("moco-v3:size=40,network=deit-t", (0,))
    model = task.model()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {
        "embedder.encoder.pos_embed",
        "embedder.encoder.patch_embed.proj.weight",
        "embedder.encoder.patch_embed.proj.bias",
    }
    trained = {id(p) for g in task.optimizer(model).param_groups for p in g["params"]}
    assert not trained & {id(p) for p in model.parameters() if not p.requires_grad}
