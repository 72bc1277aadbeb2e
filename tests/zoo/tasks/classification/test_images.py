"""Images: noise in the labels, augmentation, turning, and the networks."""

import pytest
import torch

from switch_ema.bench.loading import create_task
from switch_ema.zoo.procedures.augment import mirror, shift
from switch_ema.zoo.tasks.regression.rotation import turn
from tests.zoo.tasks.helpers import tensors


@pytest.mark.parametrize("name", ["noisy-digits:", "images:noise=0.3,"])
def test_label_noise_is_of_the_training_labels_only(name):
    clean_name = name.replace("noisy-", "").replace("noise=0.3,", "")
    noisy, clean = (create_task(f"{n}size=1000", (0,)) for n in (name, clean_name))
    wrong = (noisy.y != clean.y).double().mean().item()
    assert 0.24 < wrong < 0.30  # 30% redrawn, a tenth of which came out the same
    assert torch.equal(noisy.y_eval, clean.y_eval)
    assert torch.equal(noisy.x, clean.x)


def test_held_out_labels_stay_clean():
    noisy, clean = (
        create_task(f"digits:noise={noise}", (0,), split="validation")
        for noise in (0.9, 0.0)
    )
    assert torch.equal(noisy.y_eval, clean.y_eval)
    assert not torch.equal(noisy.y, clean.y)


def test_batches_are_full_and_normalised():
    task = create_task("images:size=100,batch=33", (0,))
    batches = list(task.train_loader(0))
    assert [len(y) for _, y in batches] == [33, 33, 33]
    images = task.data.normalise(task.x)
    assert abs(images.mean().item()) < 1e-4
    assert images.std().item() == pytest.approx(1, abs=1e-3)


def test_augmentation_follows_the_seed_and_the_epoch():
    def first(seed, epoch=0):
        task = create_task("images:size=64,batch=64,augment=True", (seed,))
        x, y = tensors(next(iter(task.train_loader(epoch))))
        plain = create_task("images:size=64,batch=64", (seed,))
        assert torch.equal(y, next(iter(plain.train_loader(epoch)))[1])
        return x, y

    (x, y), (same_x, same_y), (other_x, other_y) = first(1), first(1), first(2)
    assert torch.equal(x, same_x)
    assert torch.equal(y, same_y)
    assert not torch.equal(x, other_x)
    assert not torch.equal(y, other_y)
    later_x, later_y = first(1, epoch=1)
    assert not torch.equal(x, later_x)
    assert not torch.equal(y, later_y)


def test_shift_moves_by_whole_pixels():
    images = torch.zeros(200, 2, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = 7
    moved = shift(images, 2, torch.Generator().manual_seed(0))
    assert (moved == 7).sum() == 400
    places = {tuple(place) for place in (moved[:, 0] == 7).nonzero()[:, 1:].tolist()}
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}
    assert torch.equal(moved[:, 0], moved[:, 1])


def test_mirror_turns_about_half_of_the_images():
    images = torch.arange(3.0).expand(400, 1, 3, 3)
    flipped = mirror(images, torch.Generator().manual_seed(0))[:, 0, 0, 0] == 2
    assert 150 < flipped.sum() < 250


def test_turn_is_anticlockwise():
    images = torch.rand(4, 1, 8, 8)
    turned = turn(images, torch.tensor([0.0, 90.0, 180.0, -90.0]))
    for index, quarters in enumerate((0, 1, 2, -1)):
        expected = torch.rot90(images[index], quarters, (1, 2))
        torch.testing.assert_close(turned[index], expected, atol=1e-5, rtol=0)


def test_rotation_measures_degrees():
    task = create_task("rotation:size=50", (0,))

    class Middle(torch.nn.Linear):
        def forward(self, x):
            return torch.full((len(x), 1), 0.5)

    measured = task.evaluate(Middle(1, 1))
    # Angles are uniform over 90 degrees: mean 22.5, root mean square 26 off the middle.
    assert measured["MAE"] == pytest.approx(22.5, abs=2)
    assert measured["RMSE"] == pytest.approx(26, abs=2)


@pytest.mark.parametrize("network", ["mlp", "gru", "transformer"])
def test_the_other_signal_networks(network):
    task = create_task(f"mnist1d:size=40,network={network}", (0,))
    batch = next(iter(task.train_loader(0)))
    model = task.model()
    task.loss(model, batch).backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert set(task.evaluate(model.eval())) == {"accuracy", "nll"}
