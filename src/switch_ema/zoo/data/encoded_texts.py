"""Labelled texts as rows of tokens, kept on disk and padded on access."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from switch_ema.zoo.data import sources
from switch_ema.zoo.data.labelled_texts import FORMATS, labelled_rows
from switch_ema.zoo.data.token_cache import LARGE, cached_folder, mapped
from switch_ema.zoo.data.tokens import encoded_ids, train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_AT_ONCE = 2000
"""Texts that are read at a time."""


class EncodedTexts:
    """Texts as tokens; a row is ``[CLS] tokens [SEP]``, padded with 0.

    Args:
        tokens: The tokens of all texts, one after the other.
        ends: Where each text ends in them.
        length: Tokens per row.
        order: Which texts these are; default: all.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        ends: np.ndarray,
        length: int,
        order: Tensor | None = None,
    ) -> None:
        self._tokens, self._ends, self._length = tokens, ends, length
        self._order = torch.arange(len(ends)) if order is None else order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, which: Tensor | slice) -> "EncodedTexts":
        """Select several, as from a tensor of rows."""
        order = self._order[which]
        return EncodedTexts(self._tokens, self._ends, self._length, order)

    def rows(self) -> Tensor:
        """Read and pad these texts."""
        rows = np.zeros((len(self), self._length), dtype=np.int64)
        for row, text in zip(rows, self._order.tolist(), strict=True):
            begin = 0 if text == 0 else self._ends[text - 1]
            own = self._tokens[begin : self._ends[text]]
            row[: len(own)] = own
        return torch.from_numpy(rows)


@dataclass(frozen=True)
class ReadRows:
    """Texts whose selection is read at once, for batches."""

    texts: EncodedTexts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.texts[rows].rows()


@dataclass(frozen=True)
class TextFile:
    """A file of labelled texts, read from its beginning by each iteration."""

    path: Path
    form: str
    """Its format, one of ``labelled_texts.FORMATS``."""

    def __iter__(self) -> Iterator[str]:
        for text, _ in labelled_rows(self.path, self.form):
            yield text

    def tokenizer(self, size: int) -> "Tokenizer":
        """Train a tokenizer on the texts, or read it from the cache."""
        from tokenizers import Tokenizer

        def fill(folder: Path) -> None:
            train_tokenizer(self, size).save(str(folder / "tokenizer.json"))

        settings = {"kind": "tokenizer", "version": 1, "form": self.form, "size": size}
        folder = cached_folder((self.path,), settings, fill)
        return Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encoded(
        self, tokenizer: "Tokenizer", length: int
    ) -> tuple[EncodedTexts, Tensor]:
        """Return all texts as tokens, and their labels; encoded once, into the cache.

        Args:
            tokenizer: The tokenizer.
            length: Tokens per row, to which texts are truncated.
        """
        kind = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.int32
        settings = {
            "kind": "texts",
            "version": 1,
            "form": self.form,
            "length": length,
            "tokenizer": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
        }

        def fill(folder: Path) -> None:
            ends, labels = array("q"), array("b")
            end = 0
            with (folder / "tokens.bin").open("wb") as file:
                rows = labelled_rows(self.path, self.form)
                for texts, own in _batches(rows):
                    for ids in encoded_ids(tokenizer, texts, length):
                        np.array(ids, dtype=kind).tofile(file)
                        end += len(ids)
                        ends.append(end)
                    labels.extend(own)
            np.save(folder / "ends.npy", np.array(ends))
            np.save(folder / "labels.npy", np.array(labels))

        folder = cached_folder((self.path,), settings, fill)
        tokens = np.memmap(folder / "tokens.bin", dtype=kind, mode="r")
        ends = mapped(folder / "ends.npy")
        labels = torch.from_numpy(np.load(folder / "labels.npy")).long()
        return EncodedTexts(tokens, ends, length), labels


def large_files(name: str) -> tuple[TextFile, TextFile] | None:
    """Return the training and test file of a dataset that is best kept on disk."""
    files = sources.find_files(name) if name in FORMATS else None
    if files is None or max(file.stat().st_size for file in files) <= LARGE:
        return None
    train, test = (TextFile(file, name) for file in files)
    return train, test


def _batches(
    rows: Iterator[tuple[str, int]],
) -> Iterator[tuple[list[str], list[int]]]:
    while part := list(islice(rows, _AT_ONCE)):
        yield [text for text, _ in part], [label for _, label in part]
