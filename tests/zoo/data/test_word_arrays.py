"""Texts as word indices: alike in memory and on disk, and cached by content."""

import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import word_arrays
from switch_ema.zoo.data.word_arrays import TextChoice, load_word_arrays

CHOICES = [
    TextChoice(vocabulary=1000),
    TextChoice(vocabulary=1000, rarest=1),
    TextChoice(vocabulary=7, rarest=3),
    TextChoice(vocabulary=50, size=300, test_size=40),
    TextChoice(vocabulary=50, split="validation"),
    TextChoice(vocabulary=50, split="validation", size=201),
]


def random_text(lines, seed):
    draw = random.Random(seed)
    words = [f"w{number}" for number in range(60)] + [
        "<unk>",
        "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    ]
    return "\n".join(
        " ".join(draw.choices(words, k=draw.randrange(9))) for _ in range(lines)
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target = tmp_path / "wikitext-103"
    target.mkdir()
    for seed, part in enumerate(("train", "test")):
        text = random_text(120 if part == "train" else 40, seed)
        (target / f"wiki.{part}.tokens").write_text(text, encoding="utf-8")
    return target


def cached():
    return sorted((word_arrays.sources.download_folder() / "tokens").glob("[!.]*[!k]"))


@pytest.mark.parametrize("choice", CHOICES)
def test_arrays_on_disk_are_those_in_memory(folder, monkeypatch, choice):
    in_memory = load_word_arrays("wikitext103", 0, choice)
    assert not cached()
    monkeypatch.setattr(word_arrays, "LARGE", 0)
    for _ in range(2):  # written, then read
        on_disk = load_word_arrays("wikitext103", 0, choice)
        assert on_disk.words == in_memory.words
        assert list(on_disk.words) == list(in_memory.words)
        assert on_disk.train.dtype == torch.int32
        assert torch.equal(on_disk.train.long(), in_memory.train)
        assert torch.equal(on_disk.test.long(), in_memory.test)
    assert len(cached()) == 1


def test_changed_files_and_settings_are_tokenised_again(folder, monkeypatch):
    monkeypatch.setattr(word_arrays, "LARGE", 0)
    first, second, *_ = CHOICES
    load_word_arrays("wikitext103", 0, first)
    load_word_arrays("wikitext103", 5, first)  # the seed has no effect
    assert len(cached()) == 1
    load_word_arrays("wikitext103", 0, second)
    assert len(cached()) == 2
    path = folder / "wiki.train.tokens"
    path.write_text(f"new words\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    changed = load_word_arrays("wikitext103", 0, second)
    assert len(cached()) == 3 and "new" in changed.words


def test_a_failure_leaves_nothing_behind(folder, monkeypatch):
    monkeypatch.setattr(word_arrays, "LARGE", 0)
    path = folder / "wiki.train.tokens"
    good = path.read_bytes()
    path.write_bytes(b"a cat\nsat \xff there\n")
    with pytest.raises(UsageError, match=r"train\.tokens, line 2: .* byte 0xff"):
        load_word_arrays("wikitext103", 0, CHOICES[0])
    assert not cached()
    path.write_bytes(good)
    load_word_arrays("wikitext103", 0, CHOICES[0])
    (entry,) = cached()
    assert {file.name for file in entry.iterdir()} == {
        "train.npy",
        "test.npy",
        "words.json",
    }


def tokenise(_):
    word_arrays.LARGE = 0
    return load_word_arrays("wikitext103", 0, CHOICES[0]).train.long().sum().item()


def test_processes_that_start_together_share_one_result(folder):
    with ProcessPoolExecutor(3, mp_context=get_context("fork")) as pool:
        sums = set(pool.map(tokenise, range(3)))
    assert len(sums) == 1 and len(cached()) == 1
