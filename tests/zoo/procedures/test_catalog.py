"""The procedures are those of the paper, and everything in them can be made."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.catalog import create_optimizer
from switch_ema.bench.optimizers.groups import exempt_names
from switch_ema.bench.optimizers.schedules import check_schedule, create_schedule
from switch_ema.bench.spec import parse_spec
from switch_ema.zoo.models.catalog import NETWORKS, create_network
from switch_ema.zoo.procedures import (
    PROCEDURES,
    cifar100,
    create_procedure,
    default_procedure,
)
from switch_ema.zoo.procedures.catalog import NAMES
from switch_ema.zoo.procedures.small import OPTIMIZERS

# Table A3, column by column. Rows that are crossed out in every column are below.
TABLE_A3 = {
    "train_resolution": (224, 224, 224, 224, 160, 224, 160),
    "test_resolution": (224, 224, 224, 224, 224, 224, 224),
    "test_crop": (0.875, 0.875, 0.875, 0.95, 0.95, 0.85, 0.95),
    "epochs": (100, 300, 300, 300, 100, 150, 100),
    "batch_size": (256, 1024, 4096, 2048, 2048, 2048, 2048),
    "warmup_epochs": (0, 5, 20, 5, 5, 60, 5),
    "label_smoothing": (0, 0.1, 0.1, 0, 0, 0.1, 0),
    "stochastic_depth": (0, 0.1, 0.1, 0.05, 0, 0.1, 0),
    "repeats": (1, 3, 3, 3, 1, 1, 1),
    "clip": (None, 5.0, None, None, None, 5.0, None),
    "rand_magnitude": (None, 9, 9, 7, 6, 7, 6),
    "mixup": (0, 0.8, 0.8, 0.1, 0.1, 0.8, 0.1),
    "cutmix": (0, 1, 1, 1, 1, 1, 1),
    "erasing": (0, 0.25, 0.25, 0, 0, 0.25, 0),
    "loss": ("ce", "ce", "ce", "bce", "bce", "ce", "bce"),
}
COLUMNS = ("pytorch", "deit", "convnext", "rsb-a2", "rsb-a3", "adan", "lars")
OPTIMIZER = {
    "pytorch": ("sgd", {"lr": 0.1, "weight_decay": 1e-4, "momentum": 0.9}),
    "deit": ("adamw", {"lr": 1e-3, "weight_decay": 0.05, "betas": (0.9, 0.999)}),
    "convnext": ("adamw", {"lr": 4e-3, "weight_decay": 0.05, "betas": (0.9, 0.999)}),
    "rsb-a2": ("lamb", {"lr": 5e-3, "weight_decay": 0.02, "betas": (0.9, 0.999)}),
    "rsb-a3": ("lamb", {"lr": 8e-3, "weight_decay": 0.02, "betas": (0.9, 0.999)}),
    "adan": ("adan", {"lr": 1.6e-2, "weight_decay": 0.02, "betas": (0.98, 0.92, 0.99)}),
    "lars": ("lars", {"lr": 8e-3, "weight_decay": 0.02, "momentum": 0.9}),
}


def every_procedure():
    for name in PROCEDURES:
        yield name, create_procedure(name, network="resnet50")
    for network in NETWORKS:
        yield f"cifar100 {network}", cifar100(network)
    for optimizer in OPTIMIZERS:
        network = "resnet50"
        name = {"sgd": "pytorch", "adamw": "deit", "lamb": "rsb-a2"}.get(
            optimizer, optimizer
        )
        yield optimizer, create_procedure(name, network=network, scale="small")


@pytest.mark.parametrize("row", TABLE_A3)
def test_ingredients_are_those_of_the_table(row):
    found = tuple(getattr(PROCEDURES[name](), row) for name in COLUMNS)
    assert found == TABLE_A3[row]


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_that_are_alike_in_all_columns(name):
    procedure = PROCEDURES[name]()
    assert procedure.flip
    assert procedure.crop == "resized"
    assert procedure.rand_deviation == 0.5
    assert not (procedure.dropout or procedure.auto_augment or procedure.color_jitter)
    # Table A1.
    assert (procedure.ema_decay, procedure.switch_ema_decay) == (0.9999, 0.999)


@pytest.mark.parametrize(
    ("name", "lowest"),
    [
        ("pytorch", 0.0),
        ("deit", 1e-6),
        ("convnext", 1e-5),
        ("moganet", 1e-5),
        ("rsb-a2", 1e-6),
        ("rsb-a3", 1e-6),
        ("adan", 1e-5),
    ],
)
def test_cosines_end_at_the_minimum_rates_of_the_release(name, lowest):
    procedure = PROCEDURES[name]()
    spec = check_schedule(procedure.schedule)
    assert spec.name == "cosine"
    peak = parse_spec(procedure.optimizer).options["lr"]
    assert peak * spec.options.get("final", 0.0) == pytest.approx(lowest)


def test_moganet_is_trained_like_deit_with_more_stochastic_depth():
    found, deit = PROCEDURES["moganet"](), PROCEDURES["deit"]()
    assert (found.stochastic_depth, deit.stochastic_depth) == (0.2, 0.1)
    same = {"schedule": deit.schedule, "stochastic_depth": deit.stochastic_depth}
    assert replace(found, **same) == deit


@pytest.mark.parametrize("name", COLUMNS)
def test_optimizers_are_those_of_the_table(name):
    spec = parse_spec(PROCEDURES[name]().optimizer)
    optimizer, options = OPTIMIZER[name]
    assert spec.name == optimizer
    assert {key: spec.options[key] for key in options} == options


@pytest.mark.parametrize(
    "procedure", [pytest.param(p, id=name) for name, p in every_procedure()]
)
def test_optimizer_and_schedule_can_be_made_and_step(procedure):
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    optimizer = create_optimizer(parse_spec(procedure.optimizer), model)

    def closure():
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure) if "sam" in procedure.optimizer else closure()
    optimizer.step(closure)
    assert not torch.equal(model.weight, before)
    check_schedule(procedure.schedule)
    steps = 10
    assert procedure.warmup_epochs < procedure.epochs
    create_schedule(
        procedure.schedule,
        optimizer,
        total_steps=procedure.epochs * steps,
        warmup_steps=round(procedure.warmup_epochs * steps),
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["paper", "small", "fitted"])
def test_only_recipes_with_sgd_decay_every_tensor(name, scale):
    """As in the released configurations: the others exempt norms and biases."""
    for network in ("resnet50", "convnext-t"):
        procedure = create_procedure(name, network=network, scale=scale)
        by_sgd = parse_spec(procedure.optimizer).name in ("sgd", "sam")
        assert procedure.decay_all is by_sgd


@pytest.mark.parametrize(
    ("network", "tensors", "exempt"),
    [
        ("deit-s", 152, 102),  # 100 vectors, cls_token and pos_embed
        ("swin-t", 173, 108 + 12),  # a table of relative positions in each block
        ("convnext-t", 182, 123),
        ("moganet-s", 600, 309 + 4 * 19),  # four scales in each block
        ("resnet50", 161, 107),  # 53 pairs of batch norms, and the classifier's bias
    ],
)
def test_exempt_tensors_of_the_papers_networks(network, tensors, exempt):
    with torch.device("meta"):
        model = create_network(
            network, num_classes=1000, image_size=224, scale="paper", in_channels=3
        )
    assert len(list(model.parameters())) == tensors
    assert len(exempt_names(model)) == exempt


def test_lars_moves_weights_by_a_sensible_share_of_their_norm():
    """The rate of the table means nothing without the factor that goes with it."""
    model = nn.Linear(64, 64, bias=False)
    optimizer = create_optimizer(parse_spec(PROCEDURES["lars"]().optimizer), model)
    before = model.weight.detach().clone()
    model(torch.randn(8, 64)).square().sum().backward()
    optimizer.step()
    change = (model.weight.detach() - before).norm() / before.norm()
    assert 1e-3 < change < 2e-2


@pytest.mark.parametrize("network", NETWORKS)
def test_cifar_is_trained_for_200_epochs_with_the_decay_of_the_paper(network):
    procedure = cifar100(network)
    assert procedure.epochs == 200
    # Table A1.
    assert procedure.ema_decay == procedure.switch_ema_decay == 0.99
    assert (procedure.train_resolution or 32) == NETWORKS[network].cifar_size
    assert (procedure.test_resolution or 32) == NETWORKS[network].cifar_size
    classical = NETWORKS[network].family == "classical cnn"
    assert procedure.optimizer.startswith("sgd" if classical else "adamw")


def test_released_settings_of_cifar():
    assert "lr=0.03,momentum=0.9,weight_decay=1e-3" in cifar100("wrn28-10").optimizer
    assert "lr=0.1" in cifar100("resnet18").optimizer
    depths = [cifar100(f"convnext-{size}").stochastic_depth for size in "ts"]
    assert depths == [0.3, 0.4]


@pytest.mark.parametrize(
    "network", ["deit-s", "mlp-mixer", "swin-t", "convnext-t", "convnext-s"]
)
def test_cifar_configurations_for_weight_averaging_blend_nothing(network):
    """The numbers of the paper are those without Mixup, CutMix and erasing."""
    found = cifar100(network)
    assert not found.mixes
    assert not found.erasing
    assert (found.rand_magnitude, found.warmup_epochs) == (7, 5)
    assert parse_spec(found.optimizer).options["lr"] == 1e-3
    assert found.schedule == "cosine"
    assert found.clip == (None if "convnext" in network else 5.0)


@pytest.mark.parametrize(
    ("network", "lr", "warmup", "magnitude", "erasing"),
    [("swin-s", 5e-4, 20, 7, 0.0), ("moganet-s", 1e-3, 5, 9, 0.25)],
)
def test_cifar_configurations_with_advanced_augmentation(
    network, lr, warmup, magnitude, erasing
):
    found = cifar100(network)
    assert (found.mixup, found.cutmix, found.erasing) == (0.8, 1.0, erasing)
    assert (found.rand_magnitude, found.warmup_epochs) == (magnitude, warmup)
    assert parse_spec(found.optimizer).options["lr"] == lr
    lowest = check_schedule(found.schedule).options.get("final", 0.0) * lr
    assert lowest == pytest.approx(1e-6 if network == "swin-s" else 0)


@pytest.mark.parametrize("name", NAMES)
def test_small_procedures_keep_the_optimizer(name):
    for network in ("resnet50", "deit-s"):
        full = create_procedure(name, network=network)
        less = create_procedure(name, network=network, scale="small")
        kinds = [parse_spec(p.optimizer).name for p in (full, less)]
        assert kinds[0] == kinds[1]
        assert less.epochs <= full.epochs // 3
        assert less.works_on_batches


def test_small_deit_trains_for_longer_at_rates_of_its_own():
    others, own = (
        [create_procedure(name, network=network, scale="small") for name in NAMES]
        for network in ("convnext-t", "deit-b")
    )
    assert {p.epochs for p in others} == {15} and {p.epochs for p in own} == {20}
    differ = {
        parse_spec(a.optimizer).name
        for a, b in zip(others, own, strict=True)
        if a.optimizer != b.optimizer
    }
    assert differ == {"adamw", "adan", "lamb"}


@pytest.mark.parametrize(
    ("network", "dataset", "name"),
    [
        ("resnet50", "imagenet", "pytorch"),
        ("deit-b", "imagenet", "deit"),
        ("moganet-b", "imagenet", "moganet"),
        ("swin-t", "imagenet", "convnext"),
        ("convnext-t", "imagenet", "convnext"),
        ("convnext-t", "cifar10", "cifar100"),
        ("resnet18", "digits", "cifar100"),
    ],
)
def test_default(network, dataset, name):
    assert default_procedure(network, dataset) == name


@pytest.mark.parametrize(
    "wrong", [{"name": "rsb"}, {"network": "vgg"}, {"scale": "large"}]
)
def test_unknown_names_list_the_known_ones(wrong):
    given = {"name": "deit", "network": "deit-s", "scale": "paper", **wrong}
    key, value = next(iter(wrong.items()))
    key = "procedure" if key == "name" else key
    with pytest.raises(UsageError, match=f"{key} must be one of .*, got '{value}'"):
        create_procedure(given.pop("name"), **given)
