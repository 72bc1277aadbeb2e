"""Texts for language models: Python's documentation, WikiText-2 or PTB."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from switch_ema.zoo.data import sources
from switch_ema.zoo.data.splits import check_split, stream
from switch_ema.zoo.data.text_files import read_lines

END = "<eos>"
UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Texts:
    """Words in reading order."""

    train: list[str]
    test: list[str]


def load_texts(name: str, seed: int) -> Texts:
    """Load a text by name.

    Python's documentation has no published split: the seed draws whole topics with a
    fifth of the words as test text, and shuffles the other topics. WikiText-2 trains
    on its validation text, which is small enough for a CPU.
    """
    if name == "pydoc":
        return _split_topics(seed)
    files = sources.find_files(name)
    if files is None:
        raise sources.not_found(name)
    train, test = (_read_lines(path) for path in files)
    return Texts(train, test)


def choose_text(
    texts: Texts, split: str, size: int | None, test_size: int | None
) -> Texts:
    """Truncate both texts, and choose the evaluation text.

    Args:
        texts: The whole texts.
        split: ``test``, or ``validation`` to hold out the last fifth of the training
            text and evaluate on it.
        size: Number of training words to keep; None for all.
        test_size: Number of test words to keep, likewise.
    """
    train, test = texts.train[:size], texts.test[:test_size]
    if check_split(split):
        fifth = len(train) // 5
        train, test = train[:-fifth], train[-fifth:]
    return Texts(train, test)


def _split_topics(seed: int) -> Texts:
    topics = _topics()
    order = torch.randperm(len(topics), generator=stream(seed, "topics")).tolist()
    wanted = sum(map(len, topics)) // 5
    train: list[str] = []
    test: list[str] = []
    for index in order:
        # The last topic may be long: put it where the split stays closest to a fifth.
        fits = len(test) + len(topics[index]) / 2 <= wanted
        (test if fits else train).extend(topics[index])
    return Texts(train, test)


def manual_paragraphs() -> list[list[str]]:
    """Return the paragraphs of Python's documentation, by topic."""
    return [
        [part.strip() for part in " ".join(topic).split(END) if part.strip()]
        for topic in _topics()
    ]


@lru_cache(maxsize=1)
def _topics() -> list[list[str]]:
    """Return the words of each topic, without paragraphs of earlier topics.

    Some topics repeat others word for word, which would leak training text into the
    test. The text, and so the perplexity, differs between Python versions.
    """
    from pydoc_data.topics import topics

    seen: set[tuple[str, ...]] = set()
    texts = []
    for _, text in sorted(topics.items()):
        words: list[str] = []
        for paragraph in re.split(r"\n\s*\n", text):
            found = re.findall(r"\w+|[^\w\s]", paragraph)
            if found and tuple(found) not in seen:
                seen.add(tuple(found))
                words += [*found, END]
        if words:
            texts.append(words)
    return texts


@lru_cache(maxsize=4)
def _read_lines(path: Path) -> list[str]:
    return [word for line in words_by_line(path) for word in line]


def words_by_line(path: Path) -> Iterator[list[str]]:
    """Yield the words of each line of a file, and the end of the line."""
    for content in read_lines(path):
        for line in content.splitlines():
            yield [*line.split(), END]
