"""EMA in a plain PyTorch loop: the step hook and one call per epoch.

``SwitchEMA`` in its place also continues training from the average after each epoch.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from switch_ema import EMA

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
train, test = slice(0, 1000), slice(1000, None)


def accuracy(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        return (model(images[test]).argmax(1) == labels[test]).float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ema = EMA(model, optimizer)  # hooks optimizer.step
    for epoch in range(5):
        model.train()
        for batch in torch.randperm(1000).split(50):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        ema.end_epoch()
        with ema.averaged():  # the model holds the average in here
            print(f"epoch {epoch + 1}: accuracy {accuracy(model):.3f}")
    ema.save_averaged("digits.safetensors")


if __name__ == "__main__":
    main()
