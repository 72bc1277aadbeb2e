"""An ordinary training script, with three lines for switch-ema.

    python examples/own_script.py

trains as usual: the three lines do nothing. These commands compare methods on it:

    switch-ema compare --script "python examples/own_script.py --seed {seed}" --seeds 3
    switch-ema compare --seeds 3 --script \
        "torchrun --standalone --nproc-per-node 2 examples/own_script.py --seed {seed}"
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import switch_ema


class Net(nn.Module):
    """One convolution and one linear layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(16 * 3 * 3, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv(x).relu(), 2)
        return self.fc(self.dropout(x.flatten(1)))


def train(model, loader, optimizer):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


@torch.no_grad()
def test(model, loader):
    model.eval()
    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return 100 * correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description="Digits")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train_set = TensorDataset(images[:600], labels[:600])
    test_set = TensorDataset(images[600:], labels[600:])
    model, sampler = Net(), None
    if "RANK" in os.environ:  # started by torchrun
        distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(train_set, seed=args.seed)
    train_loader = DataLoader(
        train_set, args.batch_size, shuffle=sampler is None, sampler=sampler
    )
    test_loader = DataLoader(test_set, batch_size=500)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    trial = switch_ema.trial(model, optimizer, epochs=args.epochs)  # 1

    for epoch in range(1, args.epochs + 1):
        if sampler is not None:
            sampler.set_epoch(epoch)
        train(model, train_loader, optimizer)
        trial.end_epoch()  # 2
        values = trial.evaluate(lambda: {"accuracy": test(model, test_loader)})  # 3
        print(f"epoch {epoch}: accuracy {values['accuracy']:.1f}%")
    if "RANK" in os.environ:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
