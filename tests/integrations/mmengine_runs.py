"""A small model and its runner in MMEngine, for the tests of the hooks."""

import logging

from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from tests.integrations.helpers import (
    EPOCHS,
    Interrupted,
    adam,
    loader,
    loss_of,
    network,
)


class Model(BaseModel):
    def __init__(self, fails=False):
        super().__init__()
        self.net, self.fails, self.seen = network(), fails, []

    def forward(self, x, y, mode="tensor"):
        if mode == "loss":
            return {"loss": loss_of(self.net, (x, y))}
        if self.fails:
            raise Interrupted
        self.seen.append(self.net[0].weight.detach().clone())
        return [loss_of(self.net, (x, y)).item()]


class NLL(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.extend(data_samples)

    def compute_metrics(self, results):
        return {"nll": sum(results) / len(results)}


def runner(
    folder, hook, model=None, epochs=EPOCHS, validate=False, metric=None, **options
):
    model = model or Model()
    length = {"by_epoch": True, "max_epochs": epochs}
    if iterations := options.pop("max_iters", None):
        length = {"by_epoch": False, "max_iters": iterations}
    evaluation = {
        "val_dataloader": DataLoader(loader().dataset, 16),
        "val_cfg": {},
        "val_evaluator": Evaluator(metric or NLL()),
    }
    return Runner(
        model,
        str(folder),
        train_dataloader=DataLoader(loader().dataset, 16),
        train_cfg=length,
        optim_wrapper=options.pop("optim_wrapper", {"optimizer": adam(model.net)}),
        custom_hooks=[hook],
        log_level=logging.ERROR,
        experiment_name=str(folder / options.pop("name", "run")),
        **(evaluation if validate else {}),
        **options,
    )
