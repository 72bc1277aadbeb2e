"""The base of word-level language models: vocabulary, perplexity, baseline."""

import math
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.task import Metric, Task
from switch_ema.zoo.data.texts import END, UNKNOWN, choose_text, load_texts

LARGEST = 700.0
"""Losses are capped here: the exponential of a larger one would overflow."""


class WordTask(Task):
    """Predicts the next word. A subclass calls ``read_texts`` and makes the network."""

    metrics = (Metric(name="perplexity", higher_is_better=False),)

    words: dict[str, int]
    """Indices of the known words."""
    train: Tensor
    """The training text as word indices."""
    test: Tensor
    """The evaluation text, likewise."""

    def read_texts(
        self,
        dataset: str,
        known: tuple[str, ...],
        split: str,
        *,
        size: int | None,
        test_size: int | None,
        vocabulary: int,
        rarest: int = 2,
    ) -> None:
        """Read both texts and convert them to word indices.

        Args:
            dataset: Name of the text.
            known: Allowed names.
            split: Evaluate on the ``test`` text or on the held-out last fifth of the
                training text (``validation``).
            size: Words of the training text; None for all.
            test_size: Words of the test text, likewise.
            vocabulary: Vocabulary size; the most frequent words are kept.
            rarest: Words that occur less often in training count as unknown.
        """
        check_choice("dataset", dataset, known)
        for name, count in (("size", size), ("test_size", test_size)):
            if count is not None:
                check_count(name, count, 100)
        texts = choose_text(load_texts(dataset, self.seed), split, size, test_size)
        most = check_count("vocabulary", vocabulary, 2)
        self.words = number_words(texts.train, most, least=rarest)
        self.train = indices(texts.train, self.words)
        self.test = indices(texts.test, self.words)

    def trivial(self) -> dict[str, dict[str, float]]:
        """Measure the unigram model."""
        unigram = unigram_perplexity(self.train, self.test, len(self.words))
        return {"unigram": {"perplexity": unigram}}


def perplexity(predictions: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Measure the perplexity of a text.

    Args:
        predictions: Logits of the next words and the words, part by part; the last
            dimension of the logits is the vocabulary.
    """
    total, count = 0.0, 0
    for logits, following in predictions:
        targets = following.to(logits.device).flatten()
        loss = cross_entropy(logits.flatten(0, -2), targets, reduction="sum")
        total, count = total + loss.item(), count + len(targets)
    return {"perplexity": math.exp(min(total / count, LARGEST))}


def number_words(words: list[str], most: int, *, least: int = 2) -> dict[str, int]:
    """Index the words that occur at least ``least`` times, most frequent first."""
    special = [UNKNOWN, END]
    counts = Counter(word for word in words if word not in special)
    frequent = [word for word, count in counts.most_common(most) if count >= least]
    return {word: index for index, word in enumerate([*special, *frequent])}


def indices(words: list[str], known: dict[str, int]) -> Tensor:
    """Look up the indices of words; unknown words have index 0."""
    return torch.tensor([known.get(word, 0) for word in words])


def unigram_perplexity(train: Tensor, test: Tensor, size: int) -> float:
    """Measure a model that predicts words by their frequency in training.

    Add-one smoothing gives every word of the vocabulary a positive probability.
    """
    counts = torch.bincount(train, minlength=size).double() + 1
    surprise = -(counts / counts.sum()).log()[test].mean().item()
    return math.exp(surprise)
