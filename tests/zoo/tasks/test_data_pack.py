"""Tasks on real data; they need a folder with its files."""

import math
import os

import pytest

from switch_ema.bench.loading import create_task
from switch_ema.zoo.data import catalogue, load_images
from switch_ema.zoo.data.labelled_texts import load_labelled_texts
from switch_ema.zoo.tasks.regression.cell_count import bccd_folder, load_quarters
from tests.zoo.tasks.helpers import measure, train


@pytest.fixture(autouse=True)
def _needs_data():
    if not os.environ.get("SWITCH_EMA_DATA"):
        pytest.skip("needs SWITCH_EMA_DATA")


@pytest.mark.parametrize(
    ("name", "shape", "mean"),
    [
        ("mnist", (60000, 1, 28, 28), [0.1307]),
        ("fashion_mnist", (60000, 1, 28, 28), [0.2861]),
        ("cifar10", (20000, 3, 32, 32), [0.4915, 0.4824, 0.4472]),
    ],
)
def test_images_are_as_documented(name, shape, mean):
    data = load_images(name, 0)
    assert tuple(data.x_train.shape) == shape
    assert data.classes == 10
    found = (data.statistics()[0].flatten() / 255).tolist()
    assert found == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize(
    "text",
    [
        "images:dataset=mnist,size=400,test_size=200",
        "images:dataset=fashion_mnist,size=400,test_size=200,network=mlp",
        "images:dataset=cifar10,size=320,test_size=100,augment=True",
        "rotation:dataset=rcf,size=400",
        "lm:dataset=wikitext2,size=8000,test_size=2000,vocabulary=500,hidden=16",
    ],
)
def test_learns(text):
    task = create_task(text, (0,))
    model, losses = train(task, 3)
    assert losses[-1] < losses[0]
    assert all(math.isfinite(value) for value in measure(task, model).values())


def test_rcf_turns_and_colours():
    task = create_task("rotation:dataset=rcf,size=300", (0,))
    assert task.x.shape == (300, 3, 32, 32)
    assert task.degrees == 360
    red, _, blue = task.x[:, :, 12:20, 12:20].mean((2, 3)).unbind(1)
    angles, balance = task.y - task.y.mean(), red - blue
    correlation = (angles * balance).mean() / (angles.std() * balance.std())
    assert 0.2 < correlation < 0.9


def test_validation_text_is_not_the_test_text():
    task = create_task("lm:dataset=wikitext2,size=10000", (0,), split="validation")
    assert len(task.train) == 8000
    assert len(task.test) == 2000


def test_catalogue_finds_the_files():
    found = {source.name for source in catalogue() if source.found}
    assert {"mnist", "fashion_mnist", "cifar10", "wikitext2"} <= found


def test_penn_treebank_at_full_size():
    """One step of the published network on the published vocabulary."""
    task = create_task("awd-lstm:scale=paper", (0,))
    assert len(task.words) == 10_000
    assert len(task.train) == 929_589
    assert len(task.test) == 82_430
    model = task.model()
    assert sum(p.numel() for p in model.parameters()) == 13_632_400
    optimizer = task.optimizer(model)
    words, following, *states = next(iter(task.train_loader(0)))
    assert words.shape == (70, 20)
    loss = task.loss(model, (words[:5], following[:5], *states))
    loss.backward()
    optimizer.step()
    assert loss.item() == pytest.approx(math.log(10_000), abs=0.1)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("reviews", [725, 1368, 2495, 4337, 11075], [73, 137, 249, 434, 1107]),
        ("sst2", [29780, 37569], [912, 909]),
    ],
)
def test_labelled_texts_are_as_documented(name, train, test):
    data = load_labelled_texts(name, 0)
    assert data.y_train.bincount().tolist() == train
    assert data.y_test.bincount().tolist() == test


def test_cells_are_as_documented():
    (x, y), (x_test, y_test) = load_quarters(bccd_folder(None))
    assert (len(x), len(x_test)) == (4 * 292, 4 * 72)
    assert (y.sum().item(), y_test.sum().item()) == (3348, 805)


@pytest.mark.parametrize("version", ["paper", "c-mixup", "angles-60"])
def test_rcf_mnist_of_clothes(version):
    task = create_task(f"rcf-mnist:version={version},size=300,test_size=200", (0,))
    assert task.x.shape == (300, 3, 16, 16)
    reader = task.trivial().get("ideal reader of the colour")
    if version == "angles-60":
        assert reader is None
    else:
        assert reader["MAE"] == pytest.approx(36, abs=6)
    green = task.x[:, 1].std().item()
    assert (green > 0.1) is (version != "c-mixup")
