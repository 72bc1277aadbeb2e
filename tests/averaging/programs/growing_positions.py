"""A translation model whose buffers grow with the longest sentence it has seen.

Position tables are made anew by ``forward`` when a sentence is too long (as in M2M100),
and so is the causal mask (as in many GPTs), in training and in evaluation.
"""

import math

import torch
from torch import Tensor, nn

WORDS, WIDTH = 11, 8


class Positions(nn.Module):
    """Sinusoids of the positions, as far as they were needed."""

    def __init__(self, length: int = 4) -> None:
        super().__init__()
        self.register_buffer("table", self.sinusoids(length), persistent=False)

    @staticmethod
    def sinusoids(length: int) -> Tensor:
        rates = torch.exp(-torch.arange(WIDTH // 2) * math.log(10000.0) * 2 / WIDTH)
        angles = torch.arange(length)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)

    def forward(self, words: Tensor) -> Tensor:
        if words.shape[1] > len(self.table):
            self.table = self.sinusoids(words.shape[1]).to(self.table)
        return self.table[: words.shape[1]]


class Model(nn.Module):
    """Attention over the words so far."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = Positions()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("mask", torch.ones(2, 2).triu(1).bool())
        self.register_buffer("longest", torch.zeros(1, dtype=torch.long))

    def forward(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        if length > len(self.mask):
            self.mask = torch.ones(length, length).triu(1).bool()
            self.longest = torch.arange(length)  # an integer cache
        x = self.words(words) + self.positions(words)
        mask = self.mask[:length, :length]
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return self.head(self.norm(x.flatten(0, 1)).view_as(x))


def sentences(length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(WORDS, (3, length), generator=generator)


def loss_of(model: nn.Module, words: Tensor) -> Tensor:
    logits = model(words[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, lengths: list[int]):
    """Take one step for each length."""
    model.train()
    for seed, length in enumerate(lengths):
        loss_of(model, sentences(length, seed)).backward()
        optimizer.step()
        optimizer.zero_grad()
