"""Switch EMA in MMEngine: a hook with the argument names of the paper's hook."""

import logging
import warnings

import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.model import BaseModel
from mmengine.runner import Runner
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import switch_ema.integrations.mmengine  # noqa: F401  # registers the hooks

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Classifier(BaseModel):
    """A small perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor, y: Tensor, mode: str = "tensor") -> object:
        logits = self.net(x)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(logits, y)}
        return (logits.argmax(1) == y).float()


class Accuracy(BaseMetric):
    """Accuracy."""

    default_prefix = "digits"

    def process(self, data_batch: object, data_samples: Tensor) -> None:
        self.results += [right.item() for right in data_samples]

    def compute_metrics(self, results: list[float]) -> dict[str, float]:
        return {"accuracy": sum(results) / len(results)}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    train = TensorDataset(images[:1000], labels[:1000])
    test = TensorDataset(images[1000:], labels[1000:])
    runner = Runner(
        Classifier(),
        work_dir="digits",
        train_dataloader=DataLoader(train, 50, shuffle=True),
        train_cfg={"by_epoch": True, "max_epochs": 5},
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 3e-3}},
        val_dataloader=DataLoader(test, 200),
        val_cfg={},
        val_evaluator=Evaluator(Accuracy()),
        custom_hooks=[{"type": "SwitchEMAHook", "momentum": 0.9, "switch_interval": 1}],
        log_level=logging.ERROR,
    )
    runner.train()
    accuracy = runner.message_hub.get_scalar("val/digits/accuracy").current()
    print(f"accuracy of the average {accuracy:.3f}")


if __name__ == "__main__":
    main()
