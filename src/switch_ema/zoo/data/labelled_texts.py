"""Labelled texts: reviews, SST-2, Yelp Review, Python's manual."""

import _csv
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.splits import stream
from switch_ema.zoo.data.text_files import read_lines
from switch_ema.zoo.data.texts import manual_paragraphs


@dataclass(frozen=True)
class _TextFormat:
    """File format of labelled texts."""

    label: str
    """The column of the label."""
    text: str
    first: int
    """The smallest label; the largest is ``first + classes - 1``."""
    classes: int
    header: bool = True
    """Whether line 1 is a header; without one the columns are label and text."""
    quoted: bool = False
    """Whether columns are comma-separated with quoted texts, not tab-separated."""


FORMATS = {
    "reviews": _TextFormat("stars", "text", first=1, classes=5),
    "sst2": _TextFormat("label", "sentence", first=0, classes=2),
    "yelp": _TextFormat("stars", "text", 1, 5, header=False, quoted=True),
}
DATASETS = (*FORMATS, "pydoc")
_MANUAL_CLASSES = 4


@dataclass(frozen=True)
class LabelledTexts:
    """Texts in file order, labels from 0."""

    train: list[str]
    y_train: Tensor
    test: list[str]
    y_test: Tensor
    classes: int


def load_labelled_texts(name: str, seed: int) -> LabelledTexts:
    """Load a dataset of texts by name.

    ``pydoc`` has the paragraphs of the longest topics of Python's manual; the topic is
    the class. The seed draws a fifth of them as test data.
    """
    if name == "pydoc":
        return _manual(seed)
    files = sources.find_files(name)
    if files is None:
        raise sources.not_found(name)
    (train, y_train), (test, y_test) = (read_labelled(path, name) for path in files)
    return LabelledTexts(train, y_train, test, y_test, FORMATS[name].classes)


@lru_cache(maxsize=4)
def read_labelled(path: Path, name: str) -> tuple[list[str], Tensor]:
    """Read one file; labels start at 0.

    Raises:
        UsageError: A column is missing, or a line has an invalid label or no text; the
            message gives the line.
    """
    texts, labels = zip(*labelled_rows(path, name), strict=True)
    return list(texts), torch.tensor(labels)


def labelled_rows(path: Path, name: str) -> Iterator[tuple[str, int]]:
    """Yield each text of a file and its label; see :func:`read_labelled`."""
    form, empty = FORMATS[name], True
    for line, label, text in _rows(path, form):
        number = int(label) - form.first if label.strip().isdigit() else -1
        if not 0 <= number < form.classes:
            last = form.first + form.classes - 1
            raise UsageError(
                f"{path}, line {line}: {form.label} must be a whole number from "
                f"{form.first} to {last}, got {label!r}."
            )
        if not text.strip():
            raise UsageError(f"{path}, line {line}: {form.text} must not be empty.")
        empty = False
        yield text, number
    if empty:
        raise UsageError(f"{path} has no texts after its header.")


def _rows(path: Path, form: _TextFormat) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, label and text of each entry."""
    content = read_lines(path)
    if form.quoted:
        rows = csv.reader(content)
    else:
        rows = csv.reader(content, delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        yield from _checked(rows, path, form)
    except csv.Error as error:
        raise UsageError(f"{path}, line {rows.line_num}: {error}.") from None


def _checked(
    rows: "_csv.Reader", path: Path, form: _TextFormat
) -> Iterator[tuple[int, str, str]]:
    columns = next(rows) if form.header else [form.label, form.text]
    missing = [name for name in (form.label, form.text) if name not in columns]
    if missing:
        raise UsageError(
            f"{path}, line 1: the columns must include {form.label} and {form.text}, "
            f"got {', '.join(columns)}."
        )
    label, text = columns.index(form.label), columns.index(form.text)
    for row in rows:
        if len(row) != len(columns):
            raise UsageError(
                f"{path}, line {rows.line_num}: expected {len(columns)} columns, "
                f"got {len(row)}."
            )
        yield rows.line_num, row[label], row[text]


def _manual(seed: int) -> LabelledTexts:
    topics = sorted(manual_paragraphs(), key=len, reverse=True)[:_MANUAL_CLASSES]
    texts = [text for topic in topics for text in topic]
    labels = torch.tensor([i for i, topic in enumerate(topics) for _ in topic])
    order = torch.randperm(len(texts), generator=stream(seed, "paragraphs")).tolist()
    fifth = len(texts) // 5
    test, train = order[:fifth], order[fifth:]
    return LabelledTexts(
        train=[texts[index] for index in train],
        y_train=labels[train],
        test=[texts[index] for index in test],
        y_test=labels[test],
        classes=_MANUAL_CLASSES,
    )
