"""The classification task: data, procedures, and that every network learns."""

import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchmetrics.functional.classification import multiclass_calibration_error

from switch_ema.averaging.schedules.auto import surviving_share
from switch_ema.bench.errors import UsageError
from switch_ema.bench.loaders import BatchPart
from switch_ema.bench.loading import create_task, load_task_class
from switch_ema.bench.optimizers.schedules import create_schedule
from switch_ema.bench.optimizers.step import take_step
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.cli import main
from switch_ema.zoo.models.catalog import NETWORKS
from switch_ema.zoo.procedures.catalog import create_procedure
from switch_ema.zoo.tasks.classification.classification import Classification
from switch_ema.zoo.tasks.image_batches import (
    EvaluationImages,
    ImageLoader,
)
from tests.zoo.data.test_vision import make_folders
from tests.zoo.tasks.helpers import measure, same, seeded_model


@pytest.fixture
def fruit(tmp_path):
    return str(make_folders(tmp_path / "fruit", images=20))


def recipe_of(text):
    task_class, spec = load_task_class(text)
    return task_class.recipe_for(spec.options)


def small_task(**options):
    return Classification(0, **{"size": 60, "test_size": 40, **options})


def first_batch(task, epoch=0):
    torch.manual_seed(0)
    return next(iter(task.train_loader(epoch)))


def change(task, **ingredients):
    task.procedure = replace(task.procedure, **ingredients)
    return task


def learn(task, recipe):
    """Train with the schedule of the recipe; return the model and epochs' losses."""
    model, losses = seeded_model(task), []
    optimizer = task.optimizer(model)
    steps = len(task.train_loader(0))
    schedule = create_schedule(
        recipe.schedule,
        optimizer,
        total_steps=recipe.epochs * steps,
        warmup_steps=round(recipe.warmup_epochs * steps),
    )
    for epoch in range(recipe.epochs):
        torch.manual_seed(epoch)
        model.train()
        total = 0.0
        for batch in task.train_loader(epoch):

            def gradients(batch=batch):
                loss = task.loss(model, batch)
                loss.backward()
                return loss

            total += float(take_step(optimizer, model, gradients))
            schedule.step()
        losses.append(total / steps)
    return model, losses


def standard_errors_above_chance(accuracy, count, chance=0.1):
    return (accuracy / 100 - chance) / math.sqrt(chance * (1 - chance) / count)


@pytest.mark.parametrize("network", NETWORKS)
def test_loss_of_every_network_falls(network):
    text = f"classification:network={network},size=100,test_size=20"
    task, recipe = create_task(text, (0,)), replace(recipe_of(text), epochs=3)
    model, losses = learn(task, recipe)
    assert losses[-1] < losses[0]
    assert all(math.isfinite(value) for value in measure(task, model).values())


@pytest.mark.parametrize("procedure", ["pytorch", "sam", "lars", "rsb-a2", "deit"])
def test_optimizers_learn_digits_far_above_chance(procedure):
    text = f"classification:network=vgg13-bn,procedure={procedure},size=250"
    task, recipe = create_task(text, (0,)), replace(recipe_of(text), epochs=5)
    model, losses = learn(task, recipe)
    assert losses[-1] < losses[0]
    outputs, labels = task.predictions(model.eval())
    accuracy = 100 * (outputs.argmax(1) == labels).float().mean().item()
    assert len(labels) == 797
    assert measure(task, model)["accuracy"] == pytest.approx(accuracy)
    assert standard_errors_above_chance(accuracy, len(labels)) > 5


def test_photos_are_learnt():
    if not os.environ.get("SWITCH_EMA_DATA"):
        pytest.skip("needs SWITCH_EMA_DATA")
    text = "classification:network=vgg13-bn,dataset=cifar10,size=500,test_size=500"
    task, recipe = create_task(text, (0,)), replace(recipe_of(text), epochs=4)
    model, losses = learn(task, recipe)
    assert losses[-1] < losses[0]
    accuracy = measure(task, model)["accuracy"]
    assert standard_errors_above_chance(accuracy, 500) > 5


def test_recipe_is_that_of_the_procedure():
    task = "classification:network=deit-s,dataset=imagenet,scale=paper,batch=256"
    recipe = recipe_of(task)
    assert (recipe.epochs, recipe.warmup_epochs, recipe.clip) == (300, 5, 5.0)
    assert recipe.schedule == "cosine:final=1e-3"
    assert recipe.accumulate == 1024 // 256
    assert recipe.methods["ema"] == {"decay": 0.9999}
    assert recipe.methods["switch-ema"] == {"decay": 0.999}
    assert "lookahead" not in recipe.methods
    other = recipe_of(f"{task},procedure=rsb-a3")
    assert (other.epochs, other.accumulate, other.clip) == (100, 8, None)


def test_small_decay_lets_half_of_an_epoch_survive_a_switch():
    recipe = recipe_of("classification:network=deit-s,size=500")
    steps = 500 // 25
    decay = recipe.methods["switch-ema"]["decay"]
    assert (1 - decay) * steps == pytest.approx(1.5)
    assert recipe.methods["lookahead"] == {"k": steps // 5}


def test_a_fitted_network_keeps_the_share_of_the_papers_decays():
    """EMA's window has as many epochs as in the paper, and Switch EMA the same f."""
    recipe = recipe_of("classification:network=swin-t,procedure=convnext,scale=fitted")
    steps, theirs = 500 // 25, 1_281_167 / 4096
    for method, decay in (("ema", 0.9999), ("switch-ema", 0.999)):
        own = recipe.methods[method]["decay"]
        share = surviving_share(decay, theirs)
        assert surviving_share(own, steps) == pytest.approx(share, rel=0.01)
    assert recipe.evaluate_every == 10


def test_lars_and_lamb_fit_a_resnet_in_twice_the_epochs():
    def procedure(name, network):
        return create_procedure(name, network=network, scale="fitted", augment=False)

    assert procedure("pytorch", "resnet50").epochs == 40
    assert procedure("lars", "resnet50").epochs == 80
    assert procedure("lars", "resnet50").optimizer.startswith("lars:lr=0.01,")
    assert procedure("rsb-a2", "resnet50").optimizer.startswith("lamb:lr=0.02,")
    assert procedure("rsb-a2", "deit-s").epochs == 40
    assert procedure("rsb-a2", "deit-s").optimizer.startswith("lamb:lr=0.01,")


def test_a_fitted_network_is_measured_by_calibration_and_training_loss():
    text = "classification:network=vgg13-bn,scale=fitted,size=50,test_size=40"
    task = create_task(f"{text},augment=False", (0,))
    model, _ = learn(task, replace(recipe_of(f"{text},augment=False"), epochs=2))
    values = measure(task, model)
    assert list(values) == ["accuracy", "nll", "ece", "training loss"]
    assert [*values] == [metric.name for metric in task.metrics]
    outputs, labels = task.predictions(model.eval())
    ece = multiclass_calibration_error(outputs.softmax(1), labels, 10, n_bins=15)
    assert values["ece"] == pytest.approx(100 * float(ece), abs=1e-4)
    x, y = next(iter(task.train_loader(0)))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model.eval()(x), y)
    assert values["training loss"] == pytest.approx(loss.item(), rel=1e-5)
    broken = measure(task, nan_model(model))
    assert math.isnan(broken["ece"]) and math.isnan(broken["training loss"])


def nan_model(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    return model


def test_images_are_augmented_unless_told_otherwise():
    def images(**options):
        x, _ = first_batch(small_task(scale="fitted", **options))
        return x

    assert images().shape[-2:] == (16, 16)
    assert torch.equal(images(augment=False), images(augment=False))
    assert not torch.equal(images(), images(augment=False))
    mixed = small_task(network="deit-s", scale="paper", image_size=16, augment=False)
    assert not mixed.procedure.mixes and mixed.procedure.rand_magnitude is None
    assert mixed.procedure.test_crop == small_task(scale="paper").procedure.test_crop


def test_optimizers_that_would_mix_seeds_are_not_stacked():
    for procedure, together in (("pytorch", True), ("lars", False), ("rsb-a2", False)):
        for scale in ("small", "fitted"):
            text = (
                f"classification:network=resnet50,procedure={procedure},scale={scale}"
            )
            task_class, spec = load_task_class(text)
            assert (task_class.seeds_at_once(spec.options) > 1) == together


def test_plan_takes_the_recipe():
    config = CompareConfig(
        tasks=("classification:network=vgg13-bn",), methods=("plain", "switch-ema")
    )
    cell = make_plan(config)[0]
    assert cell.recipe == recipe_of("classification:network=vgg13-bn")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network=vgg", "network must be one of vgg13-bn, .*, got 'vgg'"),
        ("dataset=mnist", "dataset must be one of digits, .*, got 'mnist'"),
        ("procedure=a2", "procedure must be one of pytorch, .*, got 'a2'"),
        ("scale=tiny", "scale must be one of paper, small, fitted, got 'tiny'"),
        ("size=1001", "size must be at most 1000, got 1001"),
        ("size=0", "size must be a whole number of at least 10, got 0"),
        ("test_size=5", "test_size must be a whole number of at least 10, got 5"),
        ("noise=1", r"noise must be in \[0, 1\), got 1"),
        ("batch=7", "batch must be a divisor of the procedure's 25, got 7"),
        ("workers=-1", "workers must be a whole number of at least 0, got -1"),
        ("image_size=0", "image_size must be a whole number of at least 1, got 0"),
        ("folder=there", "folder applies to the dataset imagenet"),
        (
            "dataset=imagenet,folder=there",
            "there must contain train/<class>/<image> .* found no train/ and no val/",
        ),
        (
            "network=moganet-s,scale=paper,batch=25",
            "batch must be even and a divisor of the procedure's 100, got 25",
        ),
    ],
)
def test_bad_options_are_told_in_one_line(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        create_task(f"classification:{text}", (0,))
    assert "\n" not in str(caught.value)


def test_noise_redraws_training_labels_only():
    clean, noisy = small_task(), small_task(noise=0.5)
    assert 15 < int((clean.data.y_train != noisy.data.y_train).sum()) <= 30
    assert torch.equal(clean.data.y_test, noisy.data.y_test)


def test_repeated_augmentation_shows_an_image_in_several_versions():
    task = change(small_task(), repeats=5)
    x, y = first_batch(task)
    assert len(task.train_loader(0)) == len(small_task().train_loader(0))
    groups = y.view(-1, 5)
    assert (groups == groups[:, :1]).all()
    assert not torch.equal(x[0], x[1])
    assert len(y.unique()) < len(first_batch(small_task())[1].unique())


def test_soft_targets_erasing_and_smoothing_reach_the_loss():
    task = change(small_task(size=50), mixup=0.8, batch_size=24, erasing=0.9)
    task.batch = 24
    x, y = first_batch(task)
    assert y.shape == (24, 10)
    assert torch.isfinite(task.loss(seeded_model(task), (x, y)))
    plain = small_task()
    model, batch = seeded_model(plain).eval(), first_batch(plain)
    loss = plain.loss(model, batch)
    assert change(plain, label_smoothing=0.3).loss(model, batch) != loss
    assert change(plain, loss="bce").loss(model, batch) != loss


def test_dropout_acts_in_training_only():
    task = change(small_task(network="resnet18"), dropout=0.5)
    model = seeded_model(task)
    x, _ = first_batch(task)
    model.eval()
    assert torch.equal(model(x), model(x))
    model.fc.train()
    assert not torch.equal(model(x), model(x))
    names = set(seeded_model(small_task(network="resnet18")).state_dict())
    assert set(model.state_dict()) == names


def test_stochastic_depth_reaches_the_network():
    model = change(small_task(), stochastic_depth=0.2).model()
    rates = [m.drop_prob for m in model.modules() if type(m).__name__ == "DropPath"]
    assert max(rates) == pytest.approx(0.2)
    # Networks without residual blocks have nothing to drop.
    change(small_task(network="vgg13-bn"), stochastic_depth=0.2).model()


def test_batches_agree_with_images_taken_one_by_one():
    """Images below 8 pixels are not moved, so nothing random is left."""
    task = small_task()
    data = replace(task.data, x_train=task.data.x_train[..., 1:7, 1:7])
    fast = replace(task.procedure, flip=False)
    slow = replace(fast, color_jitter=1e-9)
    assert fast.works_on_batches and not slow.works_on_batches
    arguments = {"resolution": 6, "batch": 20, "seed": 0}
    pairs = zip(
        ImageLoader(data, fast, **arguments).epoch(0),
        ImageLoader(data, slow, **arguments).epoch(0),
        strict=True,
    )
    for (x, y), (x_slow, y_slow) in pairs:
        assert torch.equal(y, y_slow)
        assert torch.allclose(x, x_slow, atol=1.5 / float(data.deviation))


def test_test_crop_and_resolutions():
    task = small_task(image_size=24)
    assert (task.train_resolution, task.test_resolution) == (24, 24)
    whole = next(iter(EvaluationImages(task.data, task.procedure, resolution=24)))
    cropped = next(
        iter(
            EvaluationImages(
                task.data, replace(task.procedure, test_crop=0.5), resolution=24
            )
        )
    )
    assert whole.shape == cropped.shape
    assert not torch.equal(whole, cropped)
    assert first_batch(task)[0].shape[-1] == 24


def test_small_images_are_enlarged_at_small_scale_only():
    assert small_task().train_resolution == 16
    assert small_task(scale="paper").train_resolution == 8


def test_large_images_are_made_smaller_at_small_scale_only(fruit):
    options = {"dataset": "imagenet", "folder": fruit, "size": 20, "test_size": 20}
    assert small_task(**options).train_resolution == 32
    assert small_task(**options, scale="paper").train_resolution == 224


def test_images_in_files_are_trained_on(fruit):
    options = {"dataset": "imagenet", "folder": fruit, "image_size": 16, "size": 30}
    task = Classification(0, **options, test_size=20, noise=0.2, split="validation")
    assert len(task.x) == 24
    assert len(task.x_eval) == 6
    x, y = first_batch(task)
    assert x.shape == (24, 3, 16, 16)
    assert same(first_batch(task), [x, y])
    model = seeded_model(task)
    task.loss(model, (x, y)).backward()
    with torch.no_grad():
        outputs, labels = task.predictions(model.eval())
    assert outputs.shape == (6, 2)
    assert labels.tolist() == task.data.y_test.tolist()


def test_batches_do_not_depend_on_the_number_of_workers(fruit):
    """With everything on; nor on the part of an epoch or of a batch that is read."""
    options = {"dataset": "imagenet", "folder": fruit, "image_size": 16, "size": 30}
    everything = {
        "rand_magnitude": 9,
        "crop": "resized",
        "repeats": 2,
        "color_jitter": 0.4,
        "erasing": 0.5,
        "mixup": 0.8,
        "cutmix": 1.0,
    }

    def batches(workers, **arguments):
        task = change(Classification(0, **options, workers=workers), **everything)
        task.batch = 4
        return list(task.train_loader(1).batches(**arguments))

    whole = batches(workers=0)
    assert len(whole) == 7
    for workers in (1, 2, 5):
        assert all(map(same, whole, batches(workers)))
    assert all(map(same, whole[3:], batches(2, start=3)))
    parts = [batches(1, part=BatchPart(rank, 2)) for rank in range(2)]
    for (x, y), first, second in zip(whole, *parts, strict=True):
        outer, inner = [0, 3], [1, 2]  # each image with the one it is blended with
        assert same([x[outer], y[outer]], first)
        assert same([x[inner], y[inner]], second)


def test_the_paper_scale_reads_with_workers(fruit):
    options = {"dataset": "imagenet", "folder": fruit}
    assert Classification(0, **options, scale="paper").workers >= 1
    assert Classification(0, **options).workers == 0


def test_classification_scale_trains_files_with_everything_on(fruit):
    options = {"dataset": "imagenet", "folder": fruit, "network": "resnet50"}
    task = Classification(0, **options, scale="paper", procedure="rsb-a3")
    assert (task.train_resolution, task.test_resolution) == (160, 224)
    task.batch = 4
    x, y = first_batch(task)
    assert x.shape == (4, 3, 160, 160)
    assert y.shape == (4, 2)
    test = next(iter(EvaluationImages(task.data, task.procedure, resolution=224)))
    assert test.shape[-2:] == (224, 224)


@pytest.mark.parametrize("procedure", ["deit", "convnext", "rsb-a3", "adan", "lars"])
def test_classification_size_networks_fit_their_procedures(procedure, fruit):
    for network in ("resnet50", "deit-s", "swin-t"):
        options = {"dataset": "imagenet", "folder": fruit, "network": network}
        task = Classification(0, **options, scale="paper", procedure=procedure)
        with torch.device("meta"):
            model = task.model()
            sides = task.train_resolution, task.test_resolution
            for side in sides:
                assert model(torch.empty(2, 3, side, side)).shape == (2, 2)
        # Table A3: RSB A3 and LARS train at 160 pixels and test at 224; the windows of
        # Swin fit one size, so there training and tests share it.
        small = procedure in ("rsb-a3", "lars") and network != "swin-t"
        assert sides == (160 if small else 224, 224)


def test_a_deit_has_the_positions_of_its_test_images(fruit):
    """As released: 14 by 14 positions, resampled to 10 by 10 at 160 pixels."""
    options = {"dataset": "imagenet", "folder": fruit, "network": "deit-t"}
    torch.manual_seed(0)
    model = Classification(0, **options, scale="paper", procedure="rsb-a3").model()
    assert model.pos_embed.shape == (1, 1 + 14 * 14, 192)
    plain = Classification(0, **options, scale="paper", procedure="deit").model()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), plain.eval()(x))
        assert model(x[..., :160, :160]).shape == (1, 2)
    with pytest.raises(AssertionError):  # without resampling, 224 is the only size
        plain(x[..., :160, :160])


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_files_are_named_or_left_out_and_listed(
    fruit, tmp_path, workers, capsys, monkeypatch
):
    """From the command line: a truncated image in training, another one in tests."""
    monkeypatch.setenv("COLUMNS", "500")
    folders = [Path(fruit) / part / "lime" for part in ("train", "val")]
    paths = [sorted(folder.iterdir())[0] for folder in folders]
    for path in paths:
        Image.effect_noise((64, 64), 50).save(path, "jpeg")
        path.write_bytes(path.read_bytes()[:1000])
    options = f"dataset=imagenet,folder={fruit},image_size=16,workers={workers}"
    arguments = ["compare", f"classification:{options}", "--methods", "plain", "ema"]
    arguments += ["--seeds", "1", "--epochs", "1", "--stack", "off"]
    arguments += ["--executor", "inline", "--out", str(tmp_path / "runs")]
    with pytest.raises(SystemExit):
        main(arguments)
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"lime/[^ ]* cannot be read: image file is truncated", said)
    main([*arguments, "--skip-broken", "2"])
    shown = capsys.readouterr().out
    assert "Left out: 2 broken files: " in shown
    assert all(str(path) in shown for path in paths)
