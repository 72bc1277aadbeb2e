"""Regression: the versions of RCF-MNIST, ages from a CSV, cells in quarters."""

import pytest
import torch
from PIL import Image
from timm.layers import DropPath

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task
from switch_ema.zoo.tasks.regression.age import Age, crop_box
from switch_ema.zoo.tasks.regression.cell_count import load_quarters
from switch_ema.zoo.tasks.regression.rcf_mnist import RCFMNIST
from tests.zoo.tasks.regression_files import write_cells, write_faces

READER = "ideal reader of the colour"


def rcf(version, **options):
    given = {"dataset": "digits", "size": 400, "version": version} | options
    text = ",".join(f"{key}={value}" for key, value in given.items())
    return create_task(f"rcf-mnist:{text}", (0,))


def redder(images):
    """Tell how much redder than blue each image is, as a share of both."""
    red, _, blue = (images - images.amin((2, 3), keepdim=True)).sum((2, 3)).unbind(1)
    return red / (red + blue)


def test_colours_are_reversed_in_the_test_of_c_mixup():
    task = rcf("c-mixup")
    train = torch.corrcoef(torch.stack([redder(task.x), task.y]))[0, 1]
    test = torch.corrcoef(torch.stack([redder(task.x_eval), task.y_eval]))[0, 1]
    assert train > 0.3
    assert test < -0.3


def test_sixty_angles_without_colour():
    task = rcf("angles-60")
    torch.testing.assert_close(task.y / 6, (task.y / 6).round())
    assert task.y.min() >= 0 and task.y.max() < 355
    assert torch.equal(task.x[:, 0], task.x[:, 2])
    assert set(task.trivial()) == {"constant"}


@pytest.mark.parametrize("version", ["c-mixup"])
def test_ideal_reader_of_the_colour(version):
    """Wrong in a fifth of the images, then by 180 degrees on average: 36 degrees."""
    found = rcf(version, size=1000).trivial()
    assert found[READER]["MAE"] == pytest.approx(36, abs=9)
    assert found["constant"]["MAE"] == pytest.approx(90, abs=5)
    assert found[READER]["RMSE"] > found[READER]["MAE"]


def test_unknown_version():
    with pytest.raises(UsageError, match="version must be"):
        rcf("c-mixture")


def test_paper_scale_recipes():
    """Only ConvNeXt has a warm-up and clipping; the rate ends at 1e-6 of 1e-3."""
    for task, epochs in ((RCFMNIST, 800), (Age, 400)):
        for network in ("resnet18", "resnet50", "convnext-t"):
            recipe = task.recipe_for({"scale": "paper", "network": network})
            assert (recipe.epochs, recipe.schedule) == (epochs, "cosine:final=1e-3")
            assert recipe.methods["switch-ema"]["decay"] == 0.999
            more = (5.0, 5.0) if network == "convnext-t" else (0.0, None)
            assert (recipe.warmup_epochs, recipe.clip) == more


def test_ages_are_trained_as_released(tmp_path):
    """In batches of 4 x 64; ConvNeXt exempts vectors and has stochastic depth 0.3."""
    folder = write_faces(tmp_path / "faces")
    assert age(folder).batch == 64
    task = age(folder, scale="paper", network="convnext-t")
    assert task.batch == 256
    with torch.device("meta"):
        model = task.model()
    rates = [m.drop_prob for m in model.modules() if isinstance(m, DropPath)]
    assert max(rates) == pytest.approx(0.3)
    assert len(task.optimizer(model).param_groups) == 2
    resnet = age(folder, scale="paper", network="resnet50")
    with torch.device("meta"):
        assert len(resnet.optimizer(resnet.model()).param_groups) == 1


def age(folder, **options):
    given = {"folder": folder, "network": "resnet18"} | options
    text = ",".join(f"{key}={value}" for key, value in given.items())
    return create_task(f"age:{text}", (0,))


def test_faces_are_read_from_a_folder_and_a_csv(tmp_path):
    task = age(write_faces(tmp_path / "faces"), batch=4)
    assert (len(task.y), len(task.y_eval)) == (15, 4)
    images, ages = next(iter(task.train_loader(0)))
    assert images.shape == (4, 3, 32, 32)
    assert images.min() >= -1 and images.max() <= 1
    # Faces are drawn brighter with age, padding apart.
    middle = images[:, :, 8:24, 8:24].mean((1, 2, 3))
    assert torch.equal(middle.argsort(), ages.argsort())
    assert task.trivial()["constant"]["MAE"] > 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("age,path", "line 1: .* must include age, path, split, got age, path"),
        ("age,path,split\n30,9.png,train", "line 2: image '9.png' not found"),
        ("age,path,split\n30,0.png,training", "line 2: split must be train, val, test"),
        ("age,path,split\nold,0.png,train", "line 2: age must be a number .* 'old'"),
        ("age,path,split\n-1,0.png,train", "line 2: age must be a number from 0"),
        ("age,path,split\n30,0.png,train", "no rows with the split test"),
        ("", "is empty"),
    ],
)
def test_bad_csv(tmp_path, line, said):
    folder = write_faces(tmp_path / "faces", count=1)
    (folder / "agedb.csv").write_text(line + "\n")
    with pytest.raises(UsageError, match=said) as caught:
        age(folder)
    assert "agedb.csv" in str(caught.value)


def test_folder_without_csv(tmp_path):
    with pytest.raises(UsageError, match="folder must contain one"):
        age(tmp_path)


def test_every_cell_is_in_one_quarter(tmp_path):
    folder = write_cells(tmp_path / "cells")
    (x, y), (x_test, y_test) = load_quarters(folder)
    assert x.shape == (64, 3, 48, 48)
    assert len(x_test) == len(y_test) == 16
    import json

    content = json.loads((folder / "train.json").read_text())
    assert y.sum() == len(content["annotations"])
    # A quarter with more dark squares is darker.
    assert torch.corrcoef(torch.stack([x.mean((1, 2, 3)), y]))[0, 1] < -0.8


def test_cells_of_another_kind(tmp_path):
    folder = write_cells(tmp_path / "cells")
    for part in ("train", "val"):
        path = folder / f"{part}.json"
        path.write_text(path.read_text().replace("RBC", "cell"))
    with pytest.raises(UsageError, match="must have the category RBC, got cell, WBC"):
        create_task(f"cell-count:folder={folder}", (0,))


def test_mirrored_cells_keep_their_number(tmp_path):
    folder = write_cells(tmp_path / "cells")
    task = create_task(f"cell-count:folder={folder},batch=64", (0,))
    x, y = next(iter(task.train_loader(0)))
    assert sorted(y.tolist()) == sorted(task.y.tolist())
    for image in x[:5]:
        copies = (image, image.flip(1), image.flip(2), image.flip(1, 2))
        assert any(
            torch.equal(copy, own) for copy in copies for own in task.x.unbind(0)
        )


def test_crops_of_faces_have_half_of_the_area_or_more():
    """As the release: shares of 0.5 to 1, 3:4 to 4:3, anywhere in the image."""
    draws = torch.rand(4000, 11, 2, generator=torch.Generator().manual_seed(0))
    boxes = torch.tensor([crop_box(100, 100, each.tolist()) for each in draws]).float()
    left, top, right, bottom = boxes.unbind(1)
    width, height = right - left, bottom - top
    share, ratio = width * height / 1e4, width / height
    assert boxes.min() >= 0 and boxes.max() <= 100
    assert 0.49 < share.min() < 0.52 and share.max() > 0.97
    assert 0.72 < ratio.min() < 0.78 and 1.28 < ratio.max() < 1.36
    # Crops lie in the middle on average, and half of their room is left of them.
    assert (left + right).mean() / 2 == pytest.approx(50, abs=1)
    free = width < 99
    assert (left / (100 - width))[free].mean() == pytest.approx(0.5, abs=0.03)


def test_faces_are_tested_at_their_centre(tmp_path):
    """224 of 256 pixels, that is 7/8 of the height and width."""
    task = age(write_faces(tmp_path / "faces"))
    image = Image.new("L", (320, 320), 0)
    image.paste(255, (20, 20, 300, 300))  # the centre, 7/8 of 320
    image.save(task.x_eval.path(0), "png")
    whole = next(iter(task.evaluation_batches()))[0]
    assert whole.shape == (3, 32, 32)
    assert (whole[0, 1:-1, 1:-1] > 0.96).all()
