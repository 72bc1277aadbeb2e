"""Finding data: the user's folder, and what is said if it is not there."""

import numpy as np
import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task
from switch_ema.zoo.data import (
    catalogue,
    hold_out,
    load_images,
    redraw_labels,
    sources,
    stream,
)
from switch_ema.zoo.data.downloads import download_dataset
from switch_ema.zoo.data.labelled_texts import load_labelled_texts
from switch_ema.zoo.data.sample_files import write_sample
from switch_ema.zoo.data.texts import load_texts


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of data, and no downloads."""
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def message_of(text):
    with pytest.raises(UsageError) as caught:
        create_task(text, (0,))
    return str(caught.value)


def write_images(path, **replaced):
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 10
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    arrays |= replaced
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})


def test_unset_folder(folder, monkeypatch):
    monkeypatch.delenv("SWITCH_EMA_DATA")
    message = message_of("images:dataset=cifar10")
    assert "SWITCH_EMA_DATA is not set" in message
    assert "cifar10.npz" in message
    assert "download=True" in message


def test_missing_file_tells_what_is_there(folder):
    write_images(folder / "mnist.npz")
    message = message_of("images:dataset=fashion_mnist")
    assert "has mnist.npz, but not FashionMNIST/raw or fashion_mnist.npz" in message
    message = message_of("lm:dataset=wikitext2")
    assert "wikitext2/{valid.txt,test.txt}" in message
    assert "switch-ema data wikitext2 --download" in message
    assert "download=True" not in message


def test_folder_that_is_none(folder, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(folder / "nothing"))
    message = message_of("images:dataset=mnist")
    assert message.startswith("SWITCH_EMA_DATA is ")
    assert message.endswith("which is not a folder.")


def test_reads_arrays(folder):
    write_images(folder / "mnist.npz")
    data = load_images("mnist", 0)
    assert data.x_train.shape == (30, 1, 28, 28)
    assert data.x_train.dtype == torch.uint8
    assert data.y_train.dtype == torch.long
    assert data.classes == 10


def test_reads_colour_images(folder):
    colour = np.zeros((30, 32, 32, 3), dtype=np.uint8)
    colour[..., 1] = 9
    write_images(folder / "cifar10.npz", x_train=colour, x_test=colour)
    data = load_images("cifar10", 0)
    assert data.x_train.shape == (30, 3, 32, 32)
    assert data.statistics()[0].flatten().tolist() == [0, 9, 0]


def test_missing_arrays_are_named(folder):
    write_images(folder / "mnist.npz", y_test=None)
    assert "y_test not found" in message_of("images:dataset=mnist")


def test_pickled_arrays_are_refused(folder):
    write_images(folder / "mnist.npz", y_test=np.array([{}], dtype=object))
    assert "cannot be read" in message_of("images:dataset=mnist")


def test_broken_files_are_refused(folder):
    (folder / "mnist.npz").write_bytes(b"PK\x03\x04 not really")
    assert "mnist.npz cannot be read" in message_of("images:dataset=mnist")


def test_failing_download_says_what_else_to_do(folder, monkeypatch):
    import torchvision

    def fail(*args, **keywords):
        raise RuntimeError("no network\nat all")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fail)
    message = message_of("images:dataset=cifar10,download=True")
    assert "failed (no network): set SWITCH_EMA_DATA" in message


def test_downloads_are_found_afterwards(folder, monkeypatch):
    import torchvision

    def fake(root, *, download):
        assert root == folder / "cache" / "switch-ema" and download
        write_sample("fashion_mnist", root, count=20)

    monkeypatch.delenv("SWITCH_EMA_DATA")
    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", fake)
    data = load_images("fashion_mnist", 0, download=True)
    assert data.x_train.shape == data.x_test.shape == (20, 1, 28, 28)
    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", None)
    assert load_images("fashion_mnist", 0, download=True) is data


def test_downloads_from_the_hub_are_written_as_published(folder, monkeypatch):
    import datasets

    rows = {
        "Salesforce/wikitext": [{"text": " = Title = \n"}, {"text": ""}],
        "Yelp/yelp_review_full": [{"label": 4, "text": 'A "good" one, \\n really'}],
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *_, split: rows[name])
    download_dataset("wikitext103")
    download_dataset("yelp")
    words = load_texts("wikitext103", 0)
    assert words.train == ["=", "Title", "=", "<eos>"]
    reviews = load_labelled_texts("yelp", 0)
    assert reviews.train == ['A "good" one, \\n really']
    assert reviews.y_test.tolist() == [4]


def test_data_without_a_download_names_its_page(folder):
    with pytest.raises(UsageError, match=r"imagenet: get it from https://image-net"):
        download_dataset("imagenet")


def test_missing_module_names_the_extra():
    with pytest.raises(UsageError, match=r'pip install "switch-ema\[bench\]"'):
        sources.need("a_module_that_is_not_there")


def test_catalogue(folder):
    write_images(folder / "mnist.npz")
    (folder / "ptb").mkdir()
    for part in ("train", "test"):
        (folder / "ptb" / f"ptb.{part}.txt").write_text("a b\n")
    found = {source.name: source for source in catalogue()}
    assert {"digits", "pydoc", "mnist1d", "cifar100", "wikitext2"} <= set(found)
    assert found["digits"].found
    assert found["mnist"].found
    assert found["mnist"].where == str(folder / "mnist.npz")
    assert found["ptb"].where == str(folder / "ptb")
    assert found["ptb"].page.startswith("http://www.fit.vutbr.cz")
    assert not found["cifar10"].found
    assert found["cifar10"].where == ""
    assert "download=True" in found["cifar10"].how


def test_ptb_trains(folder):
    (folder / "ptb").mkdir()
    for part in ("train", "test"):
        (folder / "ptb" / f"{part}.txt").write_text("the cat sat\n" * 100)
    task = create_task("lm:dataset=ptb,batch=4", (0,))
    assert list(task.words) == ["<unk>", "<eos>", "the", "cat", "sat"]
    assert len(task.train) == len(task.test) == 400


def test_streams_differ_by_seed_and_purpose():
    def draw(seed, purpose):
        return torch.rand(3, generator=stream(seed, purpose)).tolist()

    assert draw(0, "a") == draw(0, "a")
    assert draw(0, "a") != draw(1, "a")
    assert draw(0, "a") != draw(0, "b")


def test_redrawn_labels():
    labels = torch.full((1000,), 7)
    redrawn = redraw_labels(labels, 0.5, 10, seed=0)
    changed = (redrawn != labels).sum().item()
    assert 420 < changed < 480  # a tenth of the 500 came out as 7 again
    assert set(redrawn.tolist()) == set(range(10))
    assert torch.equal(labels, torch.full((1000,), 7))
    assert torch.equal(redraw_labels(labels, 0.0, 10, seed=0), labels)


def test_hold_out_is_a_fifth():
    stay, held = hold_out(53, seed=0)
    assert len(held) == 10
    assert sorted(torch.cat([stay, held]).tolist()) == list(range(53))
