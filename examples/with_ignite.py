"""Switch EMA in Ignite: a handler for the trainer and its evaluator."""

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.metrics import Accuracy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from switch_ema.integrations.ignite import SwitchEMAHandler

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def main() -> None:
    torch.manual_seed(0)
    train = DataLoader(TensorDataset(images[:1000], labels[:1000]), 50, shuffle=True)
    test = DataLoader(TensorDataset(images[1000:], labels[1000:]), 200)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(engine: Engine, batch: list[Tensor]) -> float:
        model.train()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(step)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})
    averaging = SwitchEMAHandler(model, optimizer, decay=0.9)
    averaging.attach(trainer, evaluator)

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate() -> None:
        accuracy = evaluator.run(test).metrics["accuracy"]
        print(f"epoch {trainer.state.epoch}: accuracy of the average {accuracy:.3f}")

    trainer.run(train, max_epochs=5)


if __name__ == "__main__":
    main()
