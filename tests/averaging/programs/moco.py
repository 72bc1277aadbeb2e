"""Momentum contrast on toy data: a queue of unit vectors inside the model.

The queue is a float buffer whose columns are embeddings of length 1. A second float
buffer is an average that the model keeps by itself, of the embeddings.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

WIDTH, LENGTH, BATCH = 8, 32, 8


class Model(nn.Module):
    """Encoder and queue, as in the published code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, WIDTH)
        )
        self.register_buffer("queue", normalize(torch.randn(WIDTH, LENGTH), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self.register_buffer("centre", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return normalize(self.encoder(x), dim=1)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        begin = int(self.queue_ptr)
        self.queue[:, begin : begin + len(keys)] = keys.T
        self.queue_ptr[0] = (begin + len(keys)) % LENGTH
        self.centre.lerp_(keys.mean(0), 0.1)


def train(
    model: Model,
    teacher: Callable[[Tensor], Tensor],
    step: Callable[[], None],
    epochs=3,
):
    """Yield after each epoch."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for _ in range(LENGTH // BATCH):
            x = torch.randn(BATCH, 6, generator=generator)
            noise = torch.randn(2, BATCH, 6, generator=generator) / 10
            query, key = model(x + noise[0]), teacher(x + noise[1])
            positive = (query * key).sum(1, keepdim=True)
            logits = torch.cat([positive, query @ model.queue.clone()], 1) / 0.2
            cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long)).backward()
            step()
            model.enqueue(key)
        yield
