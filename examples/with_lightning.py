"""Switch EMA in Lightning: one callback."""

import logging
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from switch_ema.integrations.lightning import SwitchEMACallback

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Classifier(LightningModule):
    """A small perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        right = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", right)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    train = DataLoader(TensorDataset(images[:1000], labels[:1000]), 50, shuffle=True)
    test = DataLoader(TensorDataset(images[1000:], labels[1000:]), 200)
    averaging = SwitchEMACallback(decay=0.9)
    trainer = Trainer(
        max_epochs=5,
        callbacks=[averaging],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), train, test)
    accuracy = trainer.callback_metrics["accuracy"].item()
    assert averaging.averager is not None
    print(f"accuracy of the average {accuracy:.3f}")
    print(f"{averaging.averager.switches} switches")


if __name__ == "__main__":
    main()
