"""Masked methods: only what is hidden counts, and it is really hidden."""

import pytest
import torch
from timm.layers import DropPath

from switch_ema.bench.loading import create_task
from switch_ema.bench.sharding import Shard
from switch_ema.zoo.tasks.ssl.a2mim import fill_with_mean, frequency_loss
from switch_ema.zoo.tasks.ssl.mae import normalised, shown_tokens
from switch_ema.zoo.tasks.ssl.masked import draw_masks, patches_of
from switch_ema.zoo.tasks.ssl.simmim import SimMIM

NAMES = ("simmim", "a2mim", "mae")


def made(name):
    task = create_task(f"{name}:size=40,batch=6,network=deit-t", (0,))
    torch.manual_seed(0)
    return task, task.model(), next(iter(task.train_loader(0)))


@pytest.mark.parametrize(
    ("grid", "unit", "share", "squares"), [(8, 2, 0.6, 10), (8, 1, 0.75, 48)]
)
def test_masks_hide_whole_squares_and_the_same_number_everywhere(
    grid, unit, share, squares
):
    masks = draw_masks(50, grid, unit, share, torch.Generator().manual_seed(0))
    assert masks.shape == (50, grid**2)
    assert (masks.sum(1) == squares * unit**2).all()
    square = masks.view(50, grid // unit, unit, grid // unit, unit)
    assert (square == square[:, :, :1, :, :1]).all()
    often = masks.float().mean(0)
    assert often.min() > 0.3 and often.max() < 0.95, "everywhere alike"


def test_a_grid_that_units_do_not_divide_is_covered():
    assert draw_masks(3, grid=7, unit=2, share=1.0).all()


@pytest.mark.parametrize("name", NAMES)
def test_hidden_pixels_do_not_reach_the_prediction(name):
    _task, model, (images, mask) = made(name)
    model.eval()
    patch = model.patch
    hidden = mask.view(-1, 1, 8, 8).repeat_interleave(patch, 2)
    hidden = hidden.repeat_interleave(patch, 3).expand_as(images)
    noise = torch.randn_like(images) * hidden
    if name == "a2mim":  # the mean colour of the image is shown
        noise -= (
            noise.mean((1, 2, 3), keepdim=True)
            * hidden
            / hidden.float().mean((1, 2, 3), keepdim=True)
        )
    with torch.no_grad():
        first, second = model(images, mask), model(images + noise, mask)
        seen = model(images + torch.randn_like(images) * ~hidden, mask)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)
    assert (first - seen).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_only_hidden_patches_are_reconstructed(name):
    """The gradient with respect to the prediction of a shown patch is zero."""
    task, model, (images, mask) = made(name)
    kept = []

    def keep(module, inputs, output):
        output.retain_grad()
        kept.append(output)

    model.register_forward_hook(keep)
    task.loss(model, (images, mask)).backward()
    gradient = kept[0].grad.abs().sum(2)
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] > 0).float().mean() > 0.9


@pytest.mark.parametrize(("name", "power"), [("simmim", 1), ("mae", 2)])
def test_the_loss_by_hand(name, power):
    task, model, (images, mask) = made(name)
    prediction = model(images, mask).detach()
    errors = []
    for image, patches, hidden in zip(images, prediction, mask, strict=True):
        for index in torch.nonzero(hidden).flatten().tolist():
            row, column = divmod(index, 8)
            # One pixel is one patch in images of 8 by 8.
            gap = (patches[index, 0] - image[0, row, column]).abs().item()
            errors.append(gap**power)
    expected = sum(errors) / len(errors)
    assert task.loss(model, (images, mask)).item() == pytest.approx(expected, rel=1e-5)


def test_a2mim_adds_a_tenth_of_the_loss_of_frequencies():
    task, model, (images, mask) = made("a2mim")
    prediction = model(images, mask).detach().view(-1, 1, 8, 8)
    hidden = mask.view(-1, 1, 8, 8)
    pixels = (prediction - images).abs()[hidden].mean()
    mixed = torch.where(hidden, prediction, (prediction + images) / 2)
    expected = pixels + 0.1 * frequency_loss(mixed, images, Shard())
    torch.testing.assert_close(task.loss(model, (images, mask)).detach(), expected)


def test_the_frequency_loss_by_hand():
    images = torch.zeros(1, 1, 2, 2)
    targets = torch.tensor([[[[1.0, 3.0], [0.0, 0.0]]]])
    # Orthonormal transform of the difference: all sums over 2, so 2, -1, 2, -1.
    distance = torch.tensor([4.0, 1.0, 4.0, 1.0])
    weight = (distance.sqrt() + 1).log() / torch.tensor(3.0).log()
    expected = (weight * distance).mean()
    torch.testing.assert_close(frequency_loss(images, targets, Shard()), expected)
    assert frequency_loss(targets, targets, Shard()) == 0


def test_spectra_are_averaged_over_the_batch_before_they_are_compared():
    """Errors of opposite sign cancel, and equal ones count once."""
    targets = torch.randn(4, 3, 8, 8)
    error = torch.randn(1, 3, 8, 8)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0]).view(4, 1, 1, 1)
    cancelled = frequency_loss(targets + signs * error, targets, Shard())
    assert cancelled.item() == pytest.approx(0, abs=1e-9)
    alone = frequency_loss(targets[:1] + error, targets[:1], Shard())
    torch.testing.assert_close(frequency_loss(targets + error, targets, Shard()), alone)


def test_simmim_masks_120_of_196_patches():
    """60% of 49 squares are 29.4: the next whole number counts."""
    assert (draw_masks(2, grid=14, unit=2, share=0.6).sum(1) == 120).all()
    assert (draw_masks(2, grid=14, unit=1, share=0.75).sum(1) == 147).all()


def test_simmim_has_stochastic_depth_and_a_step_schedule_at_the_papers_scale():
    options = {"scale": "paper", "dataset": "imagenet"}
    schedule = SimMIM.recipe_for(options).schedule
    assert schedule == "step:milestones=(0.875,)"  # after 700 of 800 epochs
    others = SimMIM.recipe_for({**options, "dataset": "cifar100"}).schedule
    assert others == "cosine:final=0.1"  # 4e-5, as released
    task = create_task("simmim:size=40,network=deit-t", (0,))
    rates = {}
    for scale, side in (("small", 8), ("paper", 32)):
        task.scale, task.image_size = scale, side
        paths = [m for m in task.encoder().modules() if isinstance(m, DropPath)]
        rates[scale] = max((m.drop_prob for m in paths), default=0.0)
    assert rates == {"small": 0.0, "paper": pytest.approx(0.1)}


def test_hidden_patches_are_painted_in_the_mean_colour():
    images = torch.arange(16.0).view(1, 1, 4, 4)
    mask = torch.tensor([[True, False, False, False]])
    filled = fill_with_mean(images, mask, patch=2)
    assert (filled[0, 0, :2, :2] == 7.5).all()
    assert torch.equal(filled[0, 0, 2:], images[0, 0, 2:])
    assert torch.equal(filled[0, 0, :2, 2:], images[0, 0, :2, 2:])


def test_mae_encodes_the_class_token_and_what_is_shown():
    mask = torch.tensor([[True, False, True, False], [False, False, True, True]])
    assert shown_tokens(mask, prefix=1).tolist() == [[0, 2, 4], [0, 1, 2]]
    _task, model, (images, mask) = made("mae")
    lengths = []
    model.masked.vit.blocks[0].register_forward_hook(
        lambda module, inputs, output: lengths.append(output.shape[1])
    )
    model(images, mask)
    assert lengths == [1 + 16]  # a quarter of 64


def test_patches_are_normalised_one_by_one():
    found = normalised(torch.randn(2, 3, 50) * 4 + 7)
    torch.testing.assert_close(found.mean(2), torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(2), torch.ones(2, 3), atol=1e-4, rtol=0)


def test_patches_are_read_row_by_row():
    images = torch.arange(16.0).view(1, 1, 4, 4)
    assert patches_of(images, 2)[0, 1].tolist() == [2, 3, 6, 7]
