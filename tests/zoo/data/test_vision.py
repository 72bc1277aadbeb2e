"""Datasets by name, and folders that are not laid out as they should be."""

import numpy as np
import pytest
import torch
from PIL import Image

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import catalogue, sources
from switch_ema.zoo.data.catalog import DATASETS
from switch_ema.zoo.data.sample_files import write_sample
from switch_ema.zoo.data.vision import DATASETS as VISION
from switch_ema.zoo.data.vision import ImageFiles, load_vision, picture

COLOURS = {"apple": (200, 30, 40), "lime": (60, 190, 30)}


def make_folders(root, classes=tuple(COLOURS), parts=("train", "val"), images=3):
    for part in parts:
        for name in classes:
            folder = root / part / name
            folder.mkdir(parents=True)
            for index in range(images):
                colour = COLOURS.get(name, (0, 0, 0))
                image = Image.new("RGB", (12, 10), colour)
                image.save(folder / f"{index}.png")
    return root


@pytest.fixture
def folders(tmp_path):
    return make_folders(tmp_path / "fruit")


def test_digits_are_embedded():
    data = load_vision("digits", 0)
    assert data.x_train.shape == (1000, 1, 8, 8)
    assert data.x_test.shape == (797, 1, 8, 8)
    assert data.classes == 10
    assert not data.mirrored
    normalised = data.normalise(data.x_train)
    assert normalised.mean().abs() < 1e-4
    assert normalised.std() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "stl10"])
def test_arrays_are_read_from_the_users_folder(name, tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    labels = np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8)
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(tmp_path / f"{name}.npz", **arrays)
    monkeypatch.setenv(sources.FOLDER, str(tmp_path))
    data = load_vision(name, 0)
    assert data.x_train.shape == (6, 3, 4, 4)
    assert torch.equal(data.x_train[2], torch.from_numpy(images[2]).permute(2, 0, 1))
    assert data.classes == 3
    assert data.mirrored
    shown = np.asarray(picture(data.x_train, 2))
    assert np.array_equal(shown, images[2])


@pytest.mark.parametrize("name", VISION[1:])
def test_missing_data_says_what_is_looked_for(name, tmp_path, monkeypatch):
    monkeypatch.setenv(sources.FOLDER, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = DATASETS[name].layouts[0][0].partition("/")[0]
    with pytest.raises(UsageError, match=f"{name} was not found .* not {expected}"):
        load_vision(name, 0)


def test_stl10_is_downloaded_on_request(tmp_path, monkeypatch):
    def fake(root, *, download):
        assert download
        write_sample("stl10", root, count=4)

    monkeypatch.delenv(sources.FOLDER, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("torchvision.datasets.STL10", fake)
    with pytest.raises(UsageError, match="pass the option download=True"):
        load_vision("stl10", 0)
    data = load_vision("stl10", 0, download=True)
    assert data.x_train.shape == data.x_test.shape == (4, 3, 96, 96)
    assert data.y_train.dtype == torch.long
    assert data.classes == 4


def test_failed_download_is_told(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no network\nsecond line")

    monkeypatch.delenv(sources.FOLDER, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("torchvision.datasets.STL10", fail)
    with pytest.raises(UsageError, match=r"stl10 failed \(no network\): set") as caught:
        load_vision("stl10", 0, download=True)
    assert "\n" not in str(caught.value)


def test_every_dataset_is_in_the_catalogue():
    assert set(VISION) <= {source.name for source in catalogue()}


def test_folders_give_images_and_labels_in_order_of_class(folders):
    data = load_vision("imagenet", 0, folder=str(folders))
    assert isinstance(data.x_train, ImageFiles)
    assert data.y_train.tolist() == data.y_test.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.classes == 2
    assert picture(data.x_train, 4).getpixel((5, 5)) == COLOURS["lime"]
    assert (
        picture(data.x_train[torch.tensor([5, 0])], 1).getpixel((0, 0))
        == (COLOURS["apple"])
    )


def test_imagenet_is_found_below_the_users_folder(tmp_path, monkeypatch):
    make_folders(tmp_path / "imagenet")
    monkeypatch.setenv(sources.FOLDER, str(tmp_path))
    assert len(load_vision("imagenet", 0).x_test) == 6


def test_other_datasets_take_no_folder(folders):
    with pytest.raises(UsageError, match="folder applies to the dataset imagenet"):
        load_vision("digits", 0, folder=str(folders))


def test_missing_part_is_named(tmp_path):
    root = make_folders(tmp_path / "data", parts=("train",))
    (root / "validation").mkdir()
    with pytest.raises(UsageError) as caught:
        load_vision("imagenet", 0, folder=str(root))
    message = str(caught.value)
    assert "must contain train/<class>/<image> and val/<class>/<image>" in message
    assert "train/ with 2 folders and 0 files and no val/" in message
    assert "also validation" in message


def test_images_that_are_not_sorted_into_classes(tmp_path):
    root = make_folders(tmp_path / "data", parts=("train",))
    (root / "val").mkdir()
    for index in range(4):
        Image.new("RGB", (4, 4)).save(root / "val" / f"{index}.png")
    with pytest.raises(UsageError, match="val/ with 0 folders and 4 files"):
        load_vision("imagenet", 0, folder=str(root))


def test_parts_with_other_classes(tmp_path):
    root = make_folders(tmp_path / "data", parts=("train",))
    make_folders(root, classes=("apple", "pear"), parts=("val",))
    with pytest.raises(UsageError, match=r"same classes; found 2 .* lime, pear\."):
        load_vision("imagenet", 0, folder=str(root))


def test_class_without_an_image(folders):
    for file in (folders / "train" / "lime").iterdir():
        file.unlink()
    with pytest.raises(UsageError, match="lime"):
        load_vision("imagenet", 0, folder=str(folders))


def test_folder_that_does_not_exist(tmp_path):
    with pytest.raises(UsageError, match=r"no train/ and no val/\."):
        load_vision("imagenet", 0, folder=str(tmp_path / "nowhere"))
