"""Every dataset of the paper in its publisher's layout: written, found and read."""

import json
import os
import pickle
import re

import numpy as np
import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import catalogue, sources
from switch_ema.zoo.data.celeba import load_celeba
from switch_ema.zoo.data.detection import load_detection
from switch_ema.zoo.data.encoded_texts import TextFile
from switch_ema.zoo.data.faces import load_faces
from switch_ema.zoo.data.images import load_images
from switch_ema.zoo.data.labelled_texts import load_labelled_texts
from switch_ema.zoo.data.sample_files import SAMPLES, write_sample
from switch_ema.zoo.data.stl10 import load_stl10
from switch_ema.zoo.data.vision import load_vision

COUNT = 4


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of data, and no downloads."""
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def sample(name, folder, count=COUNT):
    write_sample(name, folder, count=count)
    return sources.find_files(name)


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"imagenet"}))
def test_samples_are_found_and_repeatable(name, folder, tmp_path):
    assert sources.find_files(name) is None
    files = sample(name, folder)
    (found,) = [source for source in catalogue() if source.name == name]
    assert found.found and found.where.startswith(str(folder))
    again = tmp_path / "again"
    write_sample(name, again, count=COUNT)
    for file in files:
        if file.is_file():
            assert file.read_bytes() == (again / file.relative_to(folder)).read_bytes()


def test_every_table_of_the_paper_has_samples():
    from switch_ema.commands.data import data_of_tables

    needed = {name for data in data_of_tables().values() for name in data}
    assert {name for name in needed if not name.startswith("weights-")} == set(SAMPLES)


def test_a_sample_of_reviews_gives_a_tokenizer_of_berts_size(folder):
    """So a rehearsed BERT without pre-trained weights has all of its parameters."""
    train, _ = sample("yelp", folder)
    assert TextFile(train, "yelp").tokenizer(30_522).get_vocab_size() == 30_522


@pytest.mark.parametrize("kind", ["CIFAR10", "CIFAR100"])
def test_cifar_is_read_as_torchvision_reads_it(kind, folder, monkeypatch):
    import torchvision

    sample(kind.lower(), folder)
    data = load_images(kind.lower(), 0)
    make = getattr(torchvision.datasets, kind)
    # Samples cannot have the published checksums.
    monkeypatch.setattr(make, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    for train, x, y in (
        (True, data.x_train, data.y_train),
        (False, data.x_test, data.y_test),
    ):
        theirs = make(folder, train=train)
        assert y.tolist() == theirs.targets
        pixels = torch.from_numpy(theirs.data).permute(0, 3, 1, 2)
        assert torch.equal(x, pixels)


@pytest.mark.parametrize("kind", ["MNIST", "FashionMNIST"])
def test_mnist_is_read_as_torchvision_reads_it(kind, folder):
    import torchvision

    name = {"MNIST": "mnist", "FashionMNIST": "fashion_mnist"}[kind]
    sample(name, folder)
    data = load_images(name, 0)
    theirs = getattr(torchvision.datasets, kind)(folder, train=True)
    assert torch.equal(data.x_train[:, 0], theirs.data)
    assert torch.equal(data.y_train, theirs.targets)


def test_mnist_is_read_from_its_published_archives(folder):
    import gzip

    before = sample("mnist", folder)
    plain = load_images("mnist", 0)
    for file in before:
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    packed = load_images("mnist", 0)
    assert torch.equal(packed.x_test, plain.x_test)


def test_stl10_is_read_as_torchvision_reads_it(folder, monkeypatch):
    from torchvision.datasets import STL10

    sample("stl10", folder)
    monkeypatch.setattr(STL10, "_check_integrity", lambda self: True)
    for split, unlabelled in (("train", False), ("train+unlabeled", True)):
        data = load_stl10(unlabelled=unlabelled, download=False)
        theirs = STL10(folder, split=split)
        assert torch.equal(data.x_train, torch.from_numpy(theirs.data))
        assert data.y_train.tolist() == theirs.labels.tolist()
    assert torch.equal(data.x_test, torch.from_numpy(STL10(folder, split="test").data))


def test_images_with_boxes_have_80_categories_and_masks(folder):
    sample("coco", folder)
    data = load_detection("coco", 0)
    assert data.classes == 80 and data.has_masks and data.problems == ()
    assert len(data.train) == len(data.test) == COUNT
    image, target = data.train[0]
    assert image.shape == (3, 480, 640)
    x1, y1, x2, y2 = target["boxes"][0].int().tolist()
    assert target["masks"][0].sum() == (x2 - x1) * (y2 - y1)


def test_coco_may_be_the_folder_itself(folder):
    sample("coco", folder)
    for part in (folder / "coco").iterdir():
        part.rename(folder / part.name)
    assert len(load_detection("coco", 0).test) == COUNT


def test_imagenet_has_a_thousand_classes(folder):
    sample("imagenet", folder, count=2)
    data = load_vision("imagenet", 0)
    assert data.classes == len(data.x_train) == len(data.x_test) == 1000
    assert re.fullmatch(r".*/n01440764/n01440764_1\.JPEG", data.x_train.paths[0])
    assert data.x_train.open(0).size == (500, 375)


def test_celeba_follows_the_published_list_of_parts(folder):
    sample("celeba", folder)
    train, test = load_celeba()
    assert train.shape == test.shape == (COUNT, 3, 64, 64)
    # Files may be missing, in any number.
    (folder / "celeba" / "img_align_celeba" / "000001.jpg").unlink()
    fewer, _ = load_celeba()
    assert torch.equal(fewer, train[1:])


def test_faces_with_ages(folder):
    for name in ("agedb", "imdb-wiki"):
        sample(name, folder)
        faces = load_faces(name, None)
        assert len(faces.x_train) == len(faces.x_test) == COUNT
        assert faces.x_train.open(0).size == (224, 224)


def test_reviews_keep_quotes_and_escapes(folder):
    sample("yelp", folder)
    texts = load_labelled_texts("yelp", 0)
    assert texts.y_train.tolist() == [0, 1, 2, 3]
    assert texts.train[0].endswith('\\n"quoted", text')


def test_moving_mnist_has_its_published_shape(folder):
    (path,) = sample("moving_mnist", folder)
    clips = np.load(path, allow_pickle=False)
    assert clips.shape == (20, COUNT, 64, 64) and clips.dtype == np.uint8


class Trap:
    """Pickled as a call that makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("key", ["data", "labels", "extra"])
def test_pickles_that_would_run_code_are_refused(folder, key, tmp_path):
    *_, last = sample("cifar10", folder)
    trap = tmp_path / "sprung"
    last.write_bytes(pickle.dumps({key: Trap(trap)}))
    with pytest.raises(UsageError, match=r"must contain only data, got posix\.system"):
        load_images("cifar10", 0)
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        {"data": np.zeros((2, 3072), dtype=np.float32), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), dtype=np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), dtype=np.uint8), "labels": [0, "1"]},
        {"data": np.array([{}]), "labels": [0]},
        {"data": b"pixels", "labels": [0]},
        {"labels": [0]},
        ["data"],
        b"no pickle",
    ],
)
def test_other_content_than_cifars_is_refused(folder, content):
    *_, last = sample("cifar10", folder)
    raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=2)
    last.write_bytes(raw)
    with pytest.raises(UsageError, match=r"test_batch (must contain|cannot be read)"):
        load_images("cifar10", 0)


def test_truncated_files_are_named(folder):
    for name, load in (
        ("mnist", lambda: load_images("mnist", 0)),
        ("stl10", lambda: load_stl10(unlabelled=True, download=False)),
        ("cifar100", lambda: load_images("cifar100", 0)),
    ):
        first, *_ = sample(name, folder)
        first.write_bytes(first.read_bytes()[:-7])
        with pytest.raises(UsageError, match=re.escape(first.name)):
            load()


def test_incomplete_folders_say_what_is_missing(folder):
    files = sample("stl10", folder)
    files[1].unlink()
    with pytest.raises(UsageError, match=r"lacks stl10_binary/train_y\.bin"):
        load_stl10(unlabelled=True, download=False)


def test_instances_are_valid_json_with_official_ids(folder):
    train, _ = sample("coco", folder)
    content = json.loads(train.read_text())
    ids = [category["id"] for category in content["categories"]]
    assert len(ids) == 80 and ids[0] == 1 and ids[-1] == 90
