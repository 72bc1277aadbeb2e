"""Word-level language modelling with an LSTM, as the paper's on Penn Treebank."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer

from switch_ema._checks import check_choice, check_count, check_range
from switch_ema.bench.data.splits import check_split, stream
from switch_ema.bench.data.texts import END, UNKNOWN, load_texts
from switch_ema.bench.task import Loader, Metric, Recipe, Task

State = tuple[Tensor, Tensor]
"""Hidden state and cell state of an LSTM."""


class LanguageModel(Task):
    """Language modelling with a 2-layer LSTM: Python's manual, WikiText-2 or PTB."""

    metrics = (Metric(name="perplexity", higher_is_better=False),)
    recipe = Recipe(
        # About 100 steps an epoch: a switch keeps about half of its progress.
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
        check_choice("dataset", dataset, ("pydoc", "wikitext2", "ptb"))
        self.hidden = check_count("hidden", hidden)
        self.dropout = check_range("dropout", dropout, 0, 1)
        self.batch = check_count("batch", batch)
        self.bptt = check_count("bptt", bptt)
        texts = load_texts(dataset, seed)
        train, test = texts.train, texts.test
        if size is not None:
            train = train[: check_count("size", size, 1000)]
        if test_size is not None:
            test = test[: check_count("test_size", test_size, 1000)]
        if check_split(split):
            fifth = len(train) // 5
            train, test = train[:-fifth], train[-fifth:]
        self.words = _vocabulary(train, check_count("vocabulary", vocabulary, 2))
        self.train, self.test = _indices(train, self.words), _indices(test, self.words)
        if len(self.train) < 2 * batch:
            raise ValueError(f"batch must be below half of the words, got {batch}.")

    def model(self) -> nn.Module:
        """Make the network."""
        return LSTM(len(self.words), self.hidden, self.dropout)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make Adam with a large learning rate; the recipe clips the gradients."""
        return Adam(model.parameters(), lr=1e-2)

    def train_loader(self, epoch: int) -> Loader:
        """Cut the text into pieces, starting at another word in each epoch."""
        generator = stream(self.seed, f"start of epoch {epoch}")
        start = int(torch.randint(len(self.train), (), generator=generator))
        text = self.train.roll(-start)
        return Pieces(_columns(text, self.batch), self.bptt)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy, going on from the state before the piece."""
        words, following, before, after = batch
        outputs, state = model(words, before.state)
        after.state = (state[0].detach(), state[1].detach())
        return cross_entropy(outputs.flatten(0, 1), following.flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure the perplexity of the text, read from beginning to end."""
        device = next(model.parameters()).device
        state, total, count = None, 0.0, 0
        for words, following, *_ in Pieces(_columns(self.test, self.batch), self.bptt):
            outputs, state = model(words.to(device), state)
            targets = following.to(device).flatten()
            total += cross_entropy(outputs.flatten(0, 1), targets).item() * len(targets)
            count += len(targets)
        return {"perplexity": math.exp(min(total / count, 700.0))}


class LSTM(nn.Module):
    """Embedding, two layers of LSTM, and the embedding again as the classifier."""

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
        # As a classifier the weights must be small, as an input they need not be.
        vectors = self.embedding(words) * math.sqrt(self.embedding.embedding_dim)
        read, state = self.reader(self.dropout(vectors), state)
        return cast(Tensor, self.classifier(self.dropout(read))), cast(State, state)


@dataclass
class Carry:
    """The state between two pieces of text; None at the beginning."""

    state: State | None = None


class Pieces:
    """The text in pieces of a few words, each with the state before and after it.

    The loss of a piece reads the one and writes the other. The state therefore belongs
    to one pass over the text: it starts empty in each epoch, so training can be resumed
    between epochs, and an optimizer may ask for the loss of a piece twice.
    """

    def __init__(self, columns: Tensor, length: int) -> None:
        self._columns, self._length = columns, length

    def __len__(self) -> int:
        return -(-(len(self._columns) - 1) // self._length)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Carry, Carry]]:
        before = Carry()
        words, following = self._columns[:-1], self._columns[1:]
        pieces = (torch.split(text, self._length) for text in (words, following))
        for piece, targets in zip(*pieces, strict=True):
            after = Carry()
            yield piece, targets, before, after
            before = after


def _columns(text: Tensor, count: int) -> Tensor:
    """Cut the text into ``count`` parts that are read side by side."""
    rows = len(text) // count
    return text[: rows * count].view(count, rows).t().contiguous()


def _vocabulary(words: list[str], most: int) -> dict[str, int]:
    """Number the words that occur at least twice, the frequent ones first."""
    special = [UNKNOWN, END]
    counts = Counter(word for word in words if word not in special)
    frequent = [word for word, count in counts.most_common(most) if count > 1]
    return {word: index for index, word in enumerate([*special, *frequent])}


def _indices(words: list[str], vocabulary: dict[str, int]) -> Tensor:
    return torch.tensor([vocabulary.get(word, 0) for word in words])
