"""Word-level language modelling with an LSTM, as in the paper on Penn Treebank."""

import math
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer

from switch_ema._checks import check_count, check_range
from switch_ema.bench.task import Loader, Recipe
from switch_ema.zoo.tasks.language.pieces import (
    Pieces,
    columns,
    epoch_pieces,
    readings,
)
from switch_ema.zoo.tasks.language.words import WordTask, perplexity

State = tuple[Tensor, Tensor]
"""Hidden state and cell state of an LSTM."""


class LanguageModel(WordTask):
    """Language modelling with a 2-layer LSTM: Python's manual, WikiText-2 or PTB.

    Args:
        seed: random seed.
        split: evaluate on "test" or "validation" text.
        dataset: the text; pydoc, Python's manual, comes with Python.
        hidden: units of each layer.
        dropout: share of the units dropped in training, in [0, 1).
        vocabulary: number of words, the most frequent ones.
        size: words of the training text; None: all of them.
        test_size: words of the test text; None: all of them.
        batch: pieces of text per step.
        bptt: words of a piece, through which gradients flow.
    """

    datasets = ("pydoc", "wikitext2", "ptb")
    uses_all_parameters = True
    recipe = Recipe(
        # About 100 steps per epoch: a switch keeps about half of its progress.
        epochs=10,
        clip=1.0,
        methods={"ema": {"decay": 0.985}, "switch-ema": {"decay": 0.985}},
    )

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        dataset: str = "pydoc",
        hidden: int = 64,
        dropout: float = 0.3,
        vocabulary: int = 10_000,
        size: int | None = None,
        test_size: int | None = None,
        batch: int = 20,
        bptt: int = 35,
    ) -> None:
        super().__init__(seed)
        self.hidden = check_count("hidden", hidden)
        self.dropout = check_range("dropout", dropout, 0, 1)
        self.batch = check_count("batch", batch)
        self.bptt = check_count("bptt", bptt)
        self.read_texts(
            dataset,
            self.datasets,
            split,
            size=size,
            test_size=test_size,
            vocabulary=vocabulary,
        )
        if len(self.train) < 2 * batch:
            raise ValueError(f"batch must be below half of the words, got {batch}.")

    def model(self) -> nn.Module:
        """Make the network."""
        return LSTM(len(self.words), self.hidden, self.dropout)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make Adam with a large learning rate; the recipe clips the gradients."""
        return Adam(model.parameters(), lr=1e-2)

    def train_loader(self, epoch: int) -> Loader:
        """Cut the text into pieces, with a different offset in each epoch."""
        return epoch_pieces(
            self.train, self.batch, self.bptt, seed=self.seed, epoch=epoch
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy, continuing from the previous state."""
        words, following, before, after = batch
        outputs, state = model(words, before.state)
        after.state = (state[0].detach(), state[1].detach())
        return cross_entropy(outputs.flatten(0, 1), following.flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure the perplexity of the text, read from beginning to end."""
        pieces = Pieces(columns(self.test, self.batch), self.bptt)
        device = next(model.parameters()).device
        return perplexity(readings(model, pieces, device))


class LSTM(nn.Module):
    """Embedding, two LSTM layers, and a classifier tied to the embedding."""

    def __init__(self, words: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        self.dropout = nn.Dropout(dropout)
        self.reader = nn.LSTM(hidden, hidden, num_layers=2, dropout=dropout)
        self.classifier = nn.Linear(hidden, words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.zeros_(self.classifier.bias)
        self.classifier.weight = self.embedding.weight

    def forward(self, words: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Predict the word after each word; time is the first dimension."""
        # A classifier needs small weights, an input embedding does not.
        vectors = self.embedding(words) * math.sqrt(self.embedding.embedding_dim)
        read, state = self.reader(self.dropout(vectors), state)
        return cast(Tensor, self.classifier(self.dropout(read))), cast(State, state)
