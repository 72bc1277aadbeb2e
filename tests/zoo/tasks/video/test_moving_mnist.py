"""Moving MNIST: errors of frames, forcing, baselines."""

import math

import numpy as np
import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task
from switch_ema.zoo.data.sample_files import write_sample
from switch_ema.zoo.tasks.video.moving_mnist import FrameErrors, MovingMNIST
from tests.zoo.tasks.helpers import measure, seeded_model, small_task, train


@pytest.fixture
def published(tmp_path, monkeypatch):
    """MNIST and the published test clips, two of random pixels each."""
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_sample("mnist", tmp_path, count=10)
    write_sample("moving_mnist", tmp_path, count=30)
    return tmp_path / "mnist_test_seq.npy"


def frame_errors(predicted, truth):
    errors = FrameErrors()
    errors.add(predicted, truth)
    return errors.means()


def truth_of(task):
    return task.x_eval[:, 10:].float() / 255


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
    truth = truth_of(task)
    black = frame_errors(torch.zeros_like(truth), truth)
    assert values["black frames"] == pytest.approx(black, rel=1e-6)
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
    assert torch.equal(rows["truth"], truth_of(task)[0])


def test_errors_of_parts_are_those_of_the_whole():
    generator = torch.Generator().manual_seed(0)
    predicted, truth = torch.rand(2, 7, 3, 1, 16, 16, generator=generator)
    errors = FrameErrors()
    for part in (slice(0, 4), slice(4, 6), slice(6, 7)):
        errors.add(predicted[part], truth[part])
    assert errors.means() == pytest.approx(frame_errors(predicted, truth), rel=1e-6)


def test_clips_are_evaluated_in_parts_of_bounded_size():
    task = create_task("moving-mnist:clips=8,tested=130,side=32", (0,))
    sizes = []

    def predict(model, seen):
        sizes.append(len(seen))
        return seen[:, -1:]

    task.predict = predict
    copied = task.trivial()["copy of the last frame"]
    assert task.evaluate(None) == copied
    assert sizes == [100, 30]
    truth = truth_of(task)
    last = (task.x_eval[:, 9:10].float() / 255).expand_as(truth)
    assert copied == pytest.approx(frame_errors(last, truth), rel=1e-6)


def test_published_clips_are_tested_on_at_the_paper_s_scale(published):
    task = create_task("moving-mnist:scale=paper", (0,))
    stored = torch.from_numpy(np.load(published))
    assert task.x_eval.shape == (30, 20, 1, 64, 64)
    assert torch.equal(task.x_eval[7, :, 0], stored[:, 7])
    assert len(create_task("moving-mnist:scale=paper,tested=4", (0,)).x_eval) == 4
    drawn = create_task("moving-mnist:scale=paper,test_clips=drawn,tested=4", (0,))
    assert not torch.equal(drawn.x_eval, task.x_eval[:4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("scale=paper,side=32", "have frames of 64 pixels, but side is 32"),
        ("scale=paper,tested=31", "tested must be at most 30"),
        ("test_clips=real", "test_clips must be 'drawn' or 'published'"),
    ],
)
def test_wrong_options_of_published_clips(published, options, message):
    with pytest.raises(UsageError, match=message):
        create_task(f"moving-mnist:{options}", (0,))


def test_wrong_files_of_clips_are_named(published):
    np.save(published, np.zeros((10, 5, 64, 64), dtype=np.uint8))
    with pytest.raises(UsageError, match=r"must hold bytes of the shape 20 .*\(10, 5"):
        create_task("moving-mnist:scale=paper", (0,))
    published.write_bytes(b"\x93NUMPY nothing")
    with pytest.raises(UsageError, match=r"mnist_test_seq\.npy cannot be read"):
        create_task("moving-mnist:scale=paper", (0,))
    published.unlink()
    with pytest.raises(UsageError, match="moving_mnist was not found"):
        create_task("moving-mnist:scale=paper", (0,))


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
