"""Train a small classifier without averaging, with EMA and with Switch EMA; compare.

Averaging matters on this task: scikit-learn's digits, 1,000 training images of which
30% have a label drawn at random, and a constant learning rate.
"""

import statistics

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from switch_ema import EMA, SwitchEMA, count_warmup

EPOCHS, BATCH, SEEDS = 30, 16, 5


def data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1000], order[1000:]
    noisy = labels[train].clone()
    redrawn = torch.rand(1000) < 0.3
    noisy[redrawn] = torch.randint(10, (int(redrawn.sum()),))
    return images[train], noisy, images[test], labels[test]


def train(seed: int, switch: bool) -> dict[str, float]:
    torch.manual_seed(seed)
    x, y, x_test, y_test = data(seed)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    method = SwitchEMA if switch else EMA
    averager = method(model, optimizer, decay=count_warmup(0.99))

    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
        averager.end_epoch()

    def accuracy() -> float:
        with torch.no_grad():
            return (model(x_test).argmax(1) == y_test).float().mean().item() * 100

    model.eval()
    plain = accuracy()
    with averager.averaged():
        average = accuracy()
    return {"Switch EMA": average} if switch else {"plain": plain, "EMA": average}


def main() -> None:
    console = Console()
    scores: dict[str, list[float]] = {}
    with console.status("training"):
        for seed in range(SEEDS):
            results = train(seed, switch=False) | train(seed, switch=True)
            for name, score in results.items():
                scores.setdefault(name, []).append(score)
    title = f"Test accuracy after {EPOCHS} epochs, digits with 30% label noise"
    table = Table("method", "mean", "standard deviation", "seeds", title=title)
    for name, values in scores.items():
        spread = f"{statistics.stdev(values):.2f}"
        table.add_row(name, f"{statistics.mean(values):.2f}", spread, str(len(values)))
    console.print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the network is too small to share between cores
    main()
