"""Moving MNIST: errors of frames, forcing, baselines."""

import math

import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task
from switch_ema.zoo.tasks.video.moving_mnist import MovingMNIST, frame_errors
from tests.zoo.tasks.helpers import measure, seeded_model, small_task, train


def test_errors_are_sums_over_pixels_and_means_over_frames():
    truth = torch.zeros(2, 3, 1, 16, 16)
    wrong = truth.clone()
    wrong[0, 0] = 2.0  # one of six frames, beyond the range
    errors = frame_errors(wrong, truth)
    assert errors["MSE"] == pytest.approx(4 * 256 / 6)
    assert errors["MAE"] == pytest.approx(2 * 256 / 6)
    # Cut to 1, the wrong frame has 0 dB; the others are bounded by 100 dB.
    assert errors["PSNR"] == pytest.approx(5 * 100 / 6)
    assert frame_errors(truth, truth)["SSIM"] == pytest.approx(1)


def test_trivial_predictors_are_measured_as_models_are():
    task = small_task("moving-mnist")
    values = task.trivial()
    assert list(values) == ["copy of the last frame", "mean image", "black frames"]
    black = frame_errors(torch.zeros_like(task.truth), task.truth)
    assert values["black frames"] == black
    assert values["mean image"]["MSE"] < black["MSE"]


def test_share_of_true_frames_falls_to_none():
    task = create_task(
        "moving-mnist:network=convlstm,clips=160,batch=16,tested=2", (0,)
    )

    def shares(epoch):
        return [float(f.float().mean()) for _, f in task.train_loader(epoch)]

    first, last = shares(0), shares(4)
    assert first[0] == 1
    assert 0.5 < sum(first) / len(first) < 1
    assert max(last) == 0
    # The control's epochs are numbered otherwise and forced alike.
    assert shares(500_000)[0] == 1
    batch = next(iter(task.train_loader(0)))
    assert batch[0].shape == (16, 20, 1, 32, 32)
    assert batch[1].shape == (16, 9)


@pytest.mark.parametrize("network", ["simvp", "simvp-v2", "convlstm", "predrnn"])
def test_every_network_learns(network):
    options = f"network={network},clips=24,tested=4,batch=8,side=16"
    task = create_task(f"moving-mnist:{options}", (0,))
    model, losses = train(task, 3)
    assert losses[-1] < losses[0]
    assert all(math.isfinite(value) for value in measure(task, model).values())


def test_loss_of_a_recurrent_network_counts_every_next_frame():
    task = create_task("moving-mnist:network=predrnn,clips=8,tested=2,side=16", (0,))
    model = seeded_model(task)
    clips, forced = next(iter(task.train_loader(0)))
    changed = clips.clone()
    changed[:, 1] = 1 - changed[:, 1]
    with torch.no_grad():
        before = model(clips, forced)
        loss = task.loss(model, (clips, forced))
    assert loss.item() == pytest.approx((before - clips[:, 1:]).square().mean().item())


def test_samples_show_what_was_seen_and_what_came():
    task = small_task("moving-mnist")
    with torch.no_grad():
        rows = task.samples(seeded_model(task).eval())
    assert list(rows) == ["seen", "truth", "prediction"]
    assert {tuple(row.shape) for row in rows.values()} == {(10, 1, 32, 32)}
    assert torch.equal(rows["truth"], task.truth[0])


def test_validation_digits_are_not_trained_on():
    task = small_task("moving-mnist", split="validation")
    assert len(task.digits) == 800


def test_recipe_is_the_paper_s_at_its_scale():
    recipe = MovingMNIST.recipe_for({"network": "predrnn", "scale": "paper"})
    schedule = "one-cycle:cycle_momentum=True"
    assert (recipe.epochs, recipe.schedule) == (200, schedule)
    assert recipe.methods["switch-ema"] == {"decay": 0.999}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("network=gru", "network must be"),
        ("side=30", "side must be a multiple of 4"),
        ("digits=letters", "digits must be"),
    ],
)
def test_mistakes_are_one_sentence(options, message):
    with pytest.raises(UsageError, match=message):
        create_task(f"moving-mnist:{options}", (0,))
