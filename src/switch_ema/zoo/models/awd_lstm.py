"""AWD-LSTM: weight dropout, variational dropout, tied embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding

State = tuple[Tensor, Tensor]
"""Hidden state and cell state of one layer."""


@dataclass(frozen=True, kw_only=True)
class AWDDropout:
    """Dropout rates of AWD-LSTM.

    The defaults are those of AdaBelief's Penn Treebank runs.
    """

    words: float = 0.1
    """Whole words of the embedding, at all their occurrences in a piece of text."""
    inputs: float = 0.4
    """Entries of the word vectors; one mask for all positions."""
    hidden: float = 0.25
    """Outputs of a layer; one mask for all positions."""
    outputs: float = 0.4
    """Outputs of the last layer, likewise."""
    weights: float = 0.5
    """Hidden-to-hidden weights of every layer (DropConnect)."""

    def scaled(self, factor: float) -> "AWDDropout":
        """Multiply all rates by a factor."""
        return AWDDropout(
            **{name: factor * share for name, share in vars(self).items()}
        )


class AWDLSTM(nn.Module):
    """Embedding, LSTM layers, and a classifier tied to the embedding.

    Inner layers have ``hidden`` units; the last has the width of the embedding, since
    the classifier shares its weights. Merity et al., 2018:
    https://arxiv.org/abs/1708.02182

    Args:
        words: Size of the vocabulary.
        width: Width of the embedding.
        hidden: Units of the inner layers.
        layers: Number of layers, at least 1.
        drop: Dropout rates.

    >>> model = AWDLSTM(words=10, width=4, hidden=6)
    >>> reading, states = model(torch.zeros(5, 2, dtype=torch.long))
    >>> reading.logits.shape, len(states)
    (torch.Size([5, 2, 10]), 2)
    """

    def __init__(
        self,
        words: int,
        width: int = 400,
        hidden: int = 1150,
        layers: int = 2,
        drop: AWDDropout | None = None,
    ) -> None:
        super().__init__()
        self.drop = drop or AWDDropout()
        widths = [width, *(hidden for _ in range(layers - 1)), width]
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.LSTM(before, after) for before, after in pairwise(widths)
        )
        self.classifier = nn.Linear(width, words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.zeros_(self.classifier.bias)
        self.classifier.weight = self.embedding.weight

    def forward(
        self, words: Tensor, states: Sequence[State] | None = None
    ) -> "tuple[Reading, tuple[State, ...]]":
        """Predict the word after each word; time is the first dimension."""
        read = locked_dropout(self._vectors(words), self.drop.inputs, self.training)
        raw, after = read, []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, nn.LSTM)
            raw, state = self._layer(layer, read, states[index] if states else None)
            after.append(state)
            last = index == len(self.layers) - 1
            share = self.drop.outputs if last else self.drop.hidden
            read = locked_dropout(raw, share, self.training)
        return Reading(self.classifier(read), raw, read), tuple(after)

    def _vectors(self, words: Tensor) -> Tensor:
        """Embed the words; in training some are dropped at all their occurrences."""
        weight, share = self.embedding.weight, self.drop.words
        if self.training and share > 0:
            kept = weight.new_ones((len(weight), 1))
            weight = weight * dropout(kept, share)
        return embedding(words, weight)

    def _layer(
        self, layer: nn.LSTM, inputs: Tensor, state: State | None
    ) -> tuple[Tensor, State]:
        if state is None:
            zeros = inputs.new_zeros(1, inputs.shape[1], layer.hidden_size)
            state = (zeros, zeros)
        # Calling the module would use its weights without dropout.
        weights: list[Tensor] = [*layer.all_weights[0]]
        weights[1] = dropout(weights[1], self.drop.weights, self.training)
        outputs, hidden, cell = torch.lstm(
            inputs, state, weights, True, 1, 0.0, self.training, False, False
        )
        return outputs, (hidden, cell)


@dataclass(frozen=True)
class Reading:
    """Output of the language model for a piece of text."""

    logits: Tensor
    raw: Tensor
    """Outputs of the last layer."""
    dropped: Tensor
    """The same after dropout: the classifier's input."""


def locked_dropout(values: Tensor, share: float, training: bool) -> Tensor:
    """Drop the same entries at every position (variational dropout).

    Args:
        values: Time is the first dimension.
        share: Dropout rate in [0, 1).
        training: Whether to drop anything.
    """
    if not training or share == 0:
        return values
    return values * dropout(values.new_ones((1, *values.shape[1:])), share)
