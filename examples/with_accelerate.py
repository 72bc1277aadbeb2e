"""Switch EMA with Accelerate: one line after prepare."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from switch_ema.integrations.accelerate import prepare_averager

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = TensorDataset(images[:1000], labels[:1000])
    loader = DataLoader(data, 25, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    averager = prepare_averager(accelerator, model, optimizer, decay=0.9)

    for epoch in range(5):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        averager.end_epoch()
        accelerator.save_state("state")  # includes the averager
        with averager.averaged(), torch.no_grad():
            model.eval()
            right = (model(images[1000:]).argmax(1) == labels[1000:]).float().mean()
        print(f"epoch {epoch + 1}: accuracy {right:.3f} after {averager.steps} steps")


if __name__ == "__main__":
    main()
