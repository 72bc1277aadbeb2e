"""Views stay images, differ, and come from their generator alone."""

import pytest
import torch

from switch_ema.zoo.tasks.ssl.views import crop, make_view, recolour


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(channels=3, count=64):
    return torch.rand(count, channels, 12, 12, generator=generator(9))


@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_images_of_the_same_form(channels):
    x = images(channels)
    view = make_view(x, generator(), least=0.2, mirrored=True)
    assert view.shape == x.shape
    assert view.min() >= 0 and view.max() <= 1
    assert not torch.equal(view, make_view(x, generator(1), least=0.2, mirrored=True))
    assert torch.equal(view, make_view(x, generator(), least=0.2, mirrored=True))
    assert (view != x).flatten(1).any(1).float().mean() > 0.9


def test_the_whole_image_is_kept_if_nothing_may_be_cut_off():
    x = images()
    # The area is all, but the ratio may still take a little of one side.
    whole = crop(x, generator(), least=1.0, mirrored=False)
    ramp = torch.linspace(0, 1, 12).expand(64, 3, 12, 12)
    shown = crop(ramp, generator(), least=1.0, mirrored=False)
    spread = shown.amax((1, 2, 3)) - shown.amin((1, 2, 3))
    assert spread.min() > 0.7
    assert whole.shape == x.shape


def test_crops_cover_between_the_least_and_the_whole_area():
    rows = torch.linspace(-1, 1, 64).view(1, 1, 64, 1).expand(500, 1, 64, 64)
    columns = rows.transpose(2, 3)
    draws = [crop(x, generator(), least=0.25, mirrored=False) for x in (rows, columns)]
    height, width = (
        (x.amax((1, 2, 3)) - x.amin((1, 2, 3))) * 64 / 63 / 2 for x in draws
    )
    area = height * width
    assert 0.15 < area.min() < 0.35
    assert area.max() > 0.85
    assert (width / height).min() > 0.7 and (width / height).max() < 1.4


def test_half_of_the_images_are_mirrored_if_they_may_be():
    ramp = torch.linspace(0, 1, 32).expand(400, 1, 32, 32)

    def rising(mirrored):
        view = crop(ramp, generator(), least=0.3, mirrored=mirrored)
        return (view[:, 0, 0, -1] > view[:, 0, 0, 0]).float().mean().item()

    assert rising(False) == 1
    assert 0.4 < rising(True) < 0.6


def test_a_fifth_becomes_grey_and_the_rest_keeps_its_colours():
    view = recolour(images(count=1000), generator())
    grey = (view.amax(1) - view.amin(1)).flatten(1).amax(1) < 1e-6
    assert 0.15 < grey.float().mean() < 0.25
