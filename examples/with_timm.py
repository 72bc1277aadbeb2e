"""Switch EMA in place of timm's ModelEmaV3, with timm's layers and optimizer."""

import torch
from sklearn.datasets import load_digits
from timm.layers import Mlp
from timm.optim import create_optimizer_v2
from torch import nn

from switch_ema.integrations.timm import SwitchEmaV3

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
BATCH, TRAINED = 50, 1000


def accuracy(model: nn.Module) -> float:
    model.eval()  # on the averaged model: this ends an epoch and switches
    with torch.no_grad():
        right = model(images[TRAINED:]).argmax(1) == labels[TRAINED:]
    return right.float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    model = Mlp(64, 64, 10)
    optimizer = create_optimizer_v2(model, "adamw", lr=3e-3)
    model_ema = SwitchEmaV3(model, decay=0.9, use_warmup=True)
    updates = 0
    for epoch in range(5):
        model.train()
        for batch in torch.randperm(TRAINED).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            updates += 1
            model_ema.update(model, step=updates)
        print(f"epoch {epoch + 1}: accuracy {accuracy(model):.3f}, ", end="")
        print(f"of the average {accuracy(model_ema):.3f}")
    print(f"{model_ema.switches} switches")


if __name__ == "__main__":
    main()
