"""An ordinary Lightning script, with one line for switch-ema.

    python examples/scripts/lightning_script.py

trains as usual. This compares methods on it, each training in its own folder:

    cd examples/scripts
    switch-ema compare --metric val_acc --script \
        "python lightning_script.py --seed {seed} --out {folder}"
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import switch_ema


class Digits(LightningModule):
    """A linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(64, 10)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        outputs = self.net(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(outputs, batch[1]))
        self.log("val_acc", (outputs.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Digits")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", default="digits")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    seed_everything(args.seed)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    train, test = torch.utils.data.random_split(data, [600, 1197])
    trainer = Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        default_root_dir=args.out,
        enable_progress_bar=False,
    )
    switch_ema.trial(trainer)  # ends epochs and evaluates at each validation
    trainer.fit(Digits(), DataLoader(train, 50, shuffle=True), DataLoader(test, 200))
    print(f"accuracy {trainer.callback_metrics['val_acc'].item():.3f}")


if __name__ == "__main__":
    main()
