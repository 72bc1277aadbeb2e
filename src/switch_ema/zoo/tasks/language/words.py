"""The base of word-level language models: vocabulary, perplexity, baseline."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.task import Metric, Task
from switch_ema.zoo.data.word_arrays import TextChoice, load_word_arrays

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
        choice = TextChoice(
            split=split,
            size=size,
            test_size=test_size,
            vocabulary=check_count("vocabulary", vocabulary, 2),
            rarest=rarest,
        )
        text = load_word_arrays(dataset, self.seed, choice)
        self.words, self.train, self.test = text.words, text.train, text.test

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
    return perplexity_of(
        (
            cross_entropy(
                logits.flatten(0, -2),
                following.to(logits.device).flatten(),
                reduction="sum",
            ).item(),
            following.numel(),
        )
        for logits, following in predictions
    )


def perplexity_of(losses: Iterable[tuple[float, int]]) -> dict[str, float]:
    """Measure a perplexity from summed losses and the number of words of each."""
    total, count = 0.0, 0
    for loss, words in losses:
        total, count = total + loss, count + words
    return {"perplexity": math.exp(min(total / count, LARGEST))}


def unigram_perplexity(train: Tensor, test: Tensor, size: int) -> float:
    """Measure a model that predicts words by their frequency in training.

    Add-one smoothing gives every word of the vocabulary a positive probability.
    """
    counts = torch.bincount(train, minlength=size).double() + 1
    surprise = -(counts / counts.sum()).log()[test.long()].mean().item()
    return math.exp(surprise)
