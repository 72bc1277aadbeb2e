"""The 2-layer AWD-LSTM on Penn Treebank: the paper's Table 11."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.task import Loader, Recipe
from switch_ema.zoo.decays import DECAYS
from switch_ema.zoo.models.awd_lstm import AWDLSTM, AWDDropout, State
from switch_ema.zoo.tasks.language.pieces import (
    Pieces,
    columns,
    epoch_pieces,
    readings,
)
from switch_ema.zoo.tasks.language.words import WordTask, perplexity

_SCHEDULE = "step:milestones=(0.5,0.725)"
"""Divides the learning rate by ten after epochs 100 and 145 of 200."""
_CLIP = 0.25


@dataclass(frozen=True)
class LSTMScale:
    """Settings of one scale: a minute on a CPU, or the published runs."""

    width: int
    hidden: int
    dropout: float
    """Factor applied to the published dropout rates."""
    dataset: str
    vocabulary: int
    rarest: int
    """Words that occur less often in training count as unknown."""
    size: int | None
    """Words of the training text; None for all."""
    test_size: int | None
    bptt: int
    test_batch: int
    recipe: Recipe


SCALES = {
    "small": LSTMScale(
        width=64,
        hidden=128,
        dropout=0.25,
        dataset="pydoc",
        vocabulary=10_000,
        rarest=2,
        size=None,
        test_size=None,
        bptt=35,
        test_batch=20,
        recipe=Recipe(
            # 109 steps per epoch: a switch keeps two thirds of an epoch's progress.
            epochs=4,
            schedule=_SCHEDULE,
            clip=_CLIP,
            methods={"ema": {"decay": 0.973}, "switch-ema": {"decay": 0.973}},
        ),
    ),
    "paper": LSTMScale(
        width=400,
        hidden=1150,
        dropout=1.0,
        dataset="ptb",
        vocabulary=10_000,
        rarest=1,
        size=None,
        test_size=None,
        bptt=70,
        test_batch=1,
        recipe=Recipe(
            epochs=200,
            schedule=_SCHEDULE,
            clip=_CLIP,
            methods=DECAYS[("penn-treebank", "language")].options(),
        ),
    ),
}


class AWDLanguageModel(WordTask):
    """Language modelling with a 2-layer AWD-LSTM on Penn Treebank.

    Network, dropout and training are those of AdaBelief's Penn Treebank runs, which the
    paper follows: 2 layers, embeddings of width 400 tied to the classifier, 1150 hidden
    units, pieces of 70 words in batches of 20, 200 epochs.
    With a piece's outputs ``h_t`` before and ``g_t`` after dropout, the loss is

        cross-entropy + 2 mean(g_t^2) + mean((h_t+1 - h_t)^2).

    Pieces have a fixed length here; the published ones vary around 70 words.

    Args:
        seed: Random seed.
        split: Evaluate on the ``test`` text or on the held-out last fifth of the
            training text (``validation``).
        scale: ``paper``, or ``small`` for a network of 64 and 128 units with a quarter
            of the dropout on Python's manual, in pieces of 35 words.
        dataset: ``ptb``, ``wikitext2`` (its validation text) or ``pydoc`` (comes with
            Python), instead of the scale's.
        size: Words of the training text, instead of the scale's.
        test_size: Words of the test text, likewise.
        vocabulary: Vocabulary size, likewise.
        layers: LSTM layers.
        batch: Pieces per batch.
    """

    uses_all_parameters = True

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe of the scale."""
        return scale_of(str(options.get("scale", "small"))).recipe

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        scale: str = "small",
        dataset: str | None = None,
        size: int | None = None,
        test_size: int | None = None,
        vocabulary: int | None = None,
        layers: int = 2,
        batch: int = 20,
    ) -> None:
        super().__init__(seed)
        self.scale = scale_of(scale)
        self.layers = check_count("layers", layers)
        self.batch = check_count("batch", batch)
        self.read_texts(
            dataset or self.scale.dataset,
            ("ptb", "wikitext2", "pydoc"),
            split,
            size=self.scale.size if size is None else size,
            test_size=self.scale.test_size if test_size is None else test_size,
            vocabulary=self.scale.vocabulary if vocabulary is None else vocabulary,
            rarest=self.scale.rarest,
        )
        if len(self.train) < 2 * batch:
            raise ValueError(f"batch must be below half of the words, got {batch}.")

    def model(self) -> nn.Module:
        """Make the network."""
        scale = self.scale
        drop = AWDDropout().scaled(scale.dropout)
        words = len(self.words)
        return AWDLSTM(words, scale.width, scale.hidden, self.layers, drop)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make Adam as published; Table 11 also has SGD and AdaBelief."""
        return Adam(model.parameters(), lr=1e-2, weight_decay=1.2e-6)

    def train_loader(self, epoch: int) -> Loader:
        """Cut the text into pieces, with a different offset in each epoch."""
        return epoch_pieces(
            self.train, self.batch, self.scale.bptt, seed=self.seed, epoch=epoch
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the regularised cross-entropy, continuing from the previous state."""
        words, following, before, after = batch
        reading, states = model(words, before.state)
        after.state = detached(states)
        loss = cross_entropy(reading.logits.flatten(0, 1), following.flatten())
        if model.training:
            loss = loss + 2 * reading.dropped.square().mean()
            if len(reading.raw) > 1:
                loss = loss + reading.raw.diff(dim=0).square().mean()
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure the perplexity of the text, read from beginning to end."""

        def read(words: Tensor, states: Any) -> tuple[Tensor, Any]:
            reading, states = model(words, states)
            return reading.logits, states

        pieces = Pieces(columns(self.test, self.scale.test_batch), self.scale.bptt)
        device = next(model.parameters()).device
        return perplexity(readings(read, pieces, device))

    def shorten_evaluation(self, examples: int) -> int:
        """Keep the first pieces of the evaluation text."""
        batch = self.scale.test_batch
        self.test = self.test[: (examples * self.scale.bptt + 1) * batch]
        return len(self.test) - batch


def scale_of(name: str) -> LSTMScale:
    """Look up a scale."""
    return SCALES[check_choice("scale", name, tuple(SCALES))]


def detached(states: tuple[State, ...]) -> tuple[State, ...]:
    """Detach states, so gradients stop at the start of the piece."""
    return tuple((hidden.detach(), cell.detach()) for hidden, cell in states)
