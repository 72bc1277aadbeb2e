"""How good are the features? A linear probe, k nearest neighbours, fine-tuning."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot

from switch_ema.bench.optimizers import create_optimizer
from switch_ema.bench.spec import Spec
from switch_ema.bench.task import Batches

PROTOCOLS = ("linear", "fine-tune")
LAYER_DECAY = 0.65


@dataclass(frozen=True)
class Labelled:
    """Features or images with their classes: to learn from, and to be judged by."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int

    def accuracy(self, predicted: Tensor) -> float:
        """Return the share of right classes in percent."""
        return 100 * (predicted.cpu() == self.y_test).double().mean().item()


def linear_probe(data: Labelled, *, ridge: float = 1e-3) -> float:
    """Classify by ridge regression on one-hot targets, which has a closed form.

    Features are brought to mean 0 and deviation 1 first; ``ridge`` is the penalty per
    example. It is no softmax regression by SGD as in the literature, but needs no
    settings of its own and takes milliseconds.
    """
    x, x_test = data.x.double(), data.x_test.double()
    deviation, mean = torch.std_mean(x, dim=0)
    # A feature that is constant, as after a collapse, tells nothing.
    scale = torch.where(deviation > 1e-8, 1 / deviation, 0.0)
    x, x_test = (x - mean) * scale, (x_test - mean) * scale
    targets = one_hot(data.y, data.classes).double()
    centre = targets.mean(0)
    penalty = ridge * len(x) * torch.eye(x.shape[1], dtype=torch.double)
    weights = torch.linalg.solve(x.T @ x + penalty, x.T @ (targets - centre))
    return data.accuracy((x_test @ weights + centre).argmax(1))


def nearest_neighbours(
    data: Labelled, *, k: int = 20, temperature: float = 0.1
) -> float:
    """Let the k most similar vote, weighted by ``exp(cosine / temperature)``."""
    k = min(k, len(data.x))
    similarity = normalize(data.x_test, dim=1) @ normalize(data.x, dim=1).T
    nearest, index = similarity.topk(k, dim=1)
    votes = torch.zeros(len(data.x_test), data.classes)
    votes.scatter_add_(1, data.y[index], ((nearest - 1) / temperature).exp())
    return data.accuracy(votes.argmax(1))


@torch.enable_grad()
def fine_tune(
    encoder: nn.Module,
    data: Labelled,
    *,
    epochs: int,
    seed: int,
    batch: int = 64,
    lr: float = 2e-3,
) -> float:
    """Train a copy of the encoder with a new classifier, early layers more slowly.

    AdamW, with a rate that falls by the factor 0.65 from layer to layer, counted from
    the output. The encoder and the random numbers of the caller stay as they are.
    """
    device = next(encoder.parameters()).device
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = copy.deepcopy(encoder).requires_grad_(True)
        getattr(model, "reset_classifier")(data.classes)  # noqa: B009 - timm's, untyped
        model.to(device).train()
        spec = Spec("adamw", {"lr": lr, "weight_decay": 0.05})
        optimizer = create_optimizer(spec, model, layer_decay=LAYER_DECAY)
        for epoch in range(epochs):
            for x, y in Batches((data.x, data.y), batch, seed, epoch=epoch):
                optimizer.zero_grad()
                loss = cross_entropy(model(x.to(device)), y.to(device))
                torch.autograd.backward(loss)
                optimizer.step()
        model.eval()
        with torch.no_grad():
            parts = torch.split(data.x_test, 256)
            outputs = torch.cat([model(part.to(device)).cpu() for part in parts])
    return data.accuracy(outputs.argmax(1))
