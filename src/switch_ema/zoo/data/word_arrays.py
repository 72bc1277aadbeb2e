"""Texts as arrays of word indices: in memory, or mapped from disk if they are large."""

import json
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from switch_ema.zoo.data import sources
from switch_ema.zoo.data.splits import check_split
from switch_ema.zoo.data.texts import (
    END,
    UNKNOWN,
    choose_text,
    load_texts,
    words_by_line,
)
from switch_ema.zoo.data.token_cache import (
    LARGE,
    cached_folder,
    count_values,
    mapped,
    write_translated,
)

_SPECIAL = (UNKNOWN, END)
_FLUSHED = 2**20
"""Indices collected before they are written."""
_WORDS = "words.json"


@dataclass(frozen=True, kw_only=True)
class TextChoice:
    """The part of a text to train and test on, and its vocabulary."""

    split: str = "test"
    """``test``, or ``validation`` for the last fifth of the training text."""
    size: int | None = None
    """Words of the training text; None for all."""
    test_size: int | None = None
    """Words of the test text, likewise."""
    vocabulary: int
    """Most words in the vocabulary, besides the unknown word and the line end."""
    rarest: int = 2
    """Words that occur less often in training count as unknown."""


@dataclass(frozen=True)
class WordArrays:
    """Training and test text as word indices, and the indices of the words."""

    words: dict[str, int]
    train: Tensor
    test: Tensor


def load_word_arrays(name: str, seed: int, choice: TextChoice) -> WordArrays:
    """Load a text by name; see :func:`switch_ema.zoo.data.texts.load_texts`.

    Large files are tokenised once, into a cache, and mapped into memory: WikiText-103
    takes 0.4 GB on disk, which all processes share.
    """
    files = None if name == "pydoc" else sources.find_files(name)
    if files is not None and max(file.stat().st_size for file in files) > LARGE:
        return _from_cache(files[0], files[1], choice)
    texts = choose_text(
        load_texts(name, seed), choice.split, choice.size, choice.test_size
    )
    words = number_words(texts.train, choice.vocabulary, least=choice.rarest)
    return WordArrays(words, indices(texts.train, words), indices(texts.test, words))


def number_words(words: Iterable[str], most: int, *, least: int = 2) -> dict[str, int]:
    """Index the words that occur at least ``least`` times, most frequent first."""
    counts = Counter(word for word in words if word not in _SPECIAL)
    frequent = [word for word, count in counts.most_common(most) if count >= least]
    return {word: index for index, word in enumerate([*_SPECIAL, *frequent])}


def indices(words: list[str], known: dict[str, int]) -> Tensor:
    """Look up the indices of words; unknown words have index 0."""
    return torch.tensor([known.get(word, 0) for word in words])


def _from_cache(train: Path, test: Path, choice: TextChoice) -> WordArrays:
    def fill(folder: Path) -> None:
        _tokenise(train, test, choice, folder)

    settings = {"kind": "words", "version": 1, **vars(choice)}
    folder = cached_folder((train, test), settings, fill)
    words = json.loads((folder / _WORDS).read_text(encoding="utf-8"))
    arrays = (
        torch.from_numpy(mapped(folder / f"{part}.npy")) for part in ("train", "test")
    )
    return WordArrays({word: index for index, word in enumerate(words)}, *arrays)


def _tokenise(train: Path, test: Path, choice: TextChoice, folder: Path) -> None:
    """Write both texts as indices, as :func:`number_words` gives them."""
    raw, raw_test = folder / "raw", folder / "raw test"
    names, names_test = _by_first_use(train, raw), _by_first_use(test, raw_test)
    ids = np.memmap(raw, np.int32, "r")[: choice.size]
    if check_split(choice.split):
        fifth = len(ids) // 5
        ids, ids_test, names_test = ids[:-fifth], ids[-fifth:], names
    else:
        ids_test = np.memmap(raw_test, np.int32, "r")[: choice.test_size]
    counts = count_values(ids, len(names))
    # As Counter.most_common: equally frequent words in order of their first use.
    order = np.argsort(-counts, kind="stable")
    frequent = [names[i] for i in order if counts[i] > 0 and names[i] not in _SPECIAL][
        : choice.vocabulary
    ]
    position = {name: index for index, name in enumerate(names)}
    kept = [word for word in frequent if counts[position[word]] >= choice.rarest]
    words = {word: index for index, word in enumerate([*_SPECIAL, *kept])}
    for part, values, own in (
        ("train", ids, names),
        ("test", ids_test, names_test),
    ):
        table = np.array([words.get(name, 0) for name in own], dtype=np.int32)
        write_translated(folder / f"{part}.npy", values, table)
    (folder / _WORDS).write_text(json.dumps(list(words)), encoding="utf-8")
    raw.unlink()
    raw_test.unlink()


def _by_first_use(source: Path, target: Path) -> list[str]:
    """Write a text's words as numbers in order of first use; return the words."""
    known: dict[str, int] = {}
    numbers = array("i")
    with target.open("wb") as file:
        for line in words_by_line(source):
            numbers.extend([known.setdefault(word, len(known)) for word in line])
            if len(numbers) > _FLUSHED:
                numbers.tofile(file)
                del numbers[:]
        numbers.tofile(file)
    return list(known)
