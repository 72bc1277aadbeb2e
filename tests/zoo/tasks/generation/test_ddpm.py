"""DDPM: its loss, its samples and its names."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task
from switch_ema.zoo.data.sample_files import write_sample
from switch_ema.zoo.tasks.generation.ddpm import DDPM
from tests.zoo.tasks.helpers import seeded_model, small_task


class Oracle(nn.Module):
    """Knows the one image that all noise was added to."""

    def __init__(self, image, diffusion):
        super().__init__()
        self.image = nn.Parameter(2 * image - 1)
        self.cumulative = diffusion.alphas_cumprod

    def forward(self, noisy, steps):
        a = self.cumulative[steps].view(-1, 1, 1, 1)
        return SimpleNamespace(sample=(noisy - a.sqrt() * self.image) / (1 - a).sqrt())


@pytest.fixture(scope="module")
def task():
    return small_task("ddpm")


@torch.no_grad()
def test_a_network_that_knows_the_noise_has_no_loss_and_draws_the_image(task):
    image = task.x[:1].floats()
    oracle = Oracle(image, task.diffusion)
    assert task.loss(oracle, (image.expand(8, -1, -1, -1),)) < 1e-6
    drawn = task.generate(oracle, 5)
    assert torch.allclose(drawn, image.expand_as(drawn), atol=1e-3)


@torch.no_grad()
def test_noise_is_the_same_for_every_method_and_number(task):
    model = seeded_model(task).eval()
    torch.manual_seed(1)
    first = task.generate(model, 6)
    torch.manual_seed(2)
    assert torch.equal(task.generate(model, 6), first)
    assert torch.allclose(task.generate(model, 4), first[:4], atol=1e-5)
    assert first.min() >= 0 and first.max() <= 1


@torch.no_grad()
def test_parts_do_not_change_what_is_drawn_and_measured(task):
    model = seeded_model(task).eval()
    whole, measured = task.generate(model, 6), task.evaluate(model)
    smaller = small_task("ddpm")
    smaller.part = 4
    assert torch.allclose(smaller.generate(model, 6), whole, atol=1e-5)
    distance, _ = task.metrics
    found = smaller.evaluate(model)[distance.name]
    assert found == pytest.approx(measured[distance.name], rel=1e-3)


def test_faces_stay_bytes_whatever_their_number(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_sample("celeba", tmp_path, count=12)
    (tmp_path / "inception.pth").write_bytes(b"")
    options = "dataset=celeba,scale=paper,inception=inception.pth,batch=5"
    task = create_task(f"ddpm:{options}", (0,))
    assert len(task.x) == len(task.x_eval) == 12
    assert task.x.shape == (3, 64, 64)
    assert task.x._pixels.dtype == torch.uint8
    batches = [images for (images,) in task.train_loader(0)]
    assert [tuple(images.shape) for images in batches] == [(5, 3, 64, 64)] * 2
    assert 0 <= batches[0].min() < batches[0].max() <= 1


def test_trivial_values_lie_on_the_two_sides(task):
    more = create_task("ddpm:samples=400", (0,))
    name = more.metrics[0].name
    values = {key: value.get(name) for key, value in more.trivial().items()}
    gaussian, floor, _ = values.values()
    assert list(values)[:2] == [
        "pixel Gaussian, 400 draws",
        "floor: 400 real images",
    ]
    assert 0 < floor < gaussian / 5


@torch.no_grad()
def test_samples_are_the_first_generated_images(task):
    model = seeded_model(task).eval()
    pictures = task.samples(model)
    assert pictures.shape == (16, 1, 8, 8)
    assert torch.equal(pictures, task.generate(model, 16))


def test_names_say_whose_features_are_compared():
    def name(**options):
        return DDPM.metrics_for(options)[0].name

    assert name() == "Fréchet distance, digit classifier's features"
    assert DDPM.metrics == DDPM.metrics_for({})
    cifar = "Fréchet distance, CIFAR-10 classifier's features"
    assert name(dataset="cifar10") == cifar
    assert name(dataset="celeba", inception="w.pth") == "FID"


def test_recipe_is_the_paper_s_at_its_scale():
    recipe = DDPM.recipe_for({"dataset": "cifar10", "scale": "paper"})
    assert (recipe.epochs, recipe.evaluate_every) == (2000, 50)
    assert recipe.methods["switch-ema"] == {"decay": 0.9999, "switch_every": 1}
    assert recipe.warmup_epochs == pytest.approx(5000 / 390)
    celeba = DDPM.recipe_for({"dataset": "celeba", "scale": "paper"})
    assert (celeba.epochs, celeba.evaluate_every) == (600, 20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("dataset=cats", "dataset must be one of digits, mnist, cifar10"),
        ("scale=large", "scale must be small or paper"),
        ("inception=nowhere.pth", "nowhere.pth is not a file"),
        ("dataset=celeba,scale=paper", "has no labels"),
        ("size=5000", "size must be at most 1000"),
    ],
)
def test_mistakes_are_one_sentence(options, message):
    with pytest.raises(UsageError, match=message):
        create_task(f"ddpm:{options}", (0,))
