"""A small module and its training in Lightning, for the tests of the callback."""

import logging

import lightning.pytorch as lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from switch_ema.integrations.lightning import SwitchEMACallback
from tests.integrations.helpers import (
    EPOCHS,
    OPTIONS,
    STEPS,
    adam,
    loader,
    loss_of,
    network,
)

for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()
        self.seen = []

    def training_step(self, batch, index):
        return loss_of(self.net, batch)

    def validation_step(self, batch, index):
        self.log("loss", loss_of(self.net, batch))
        self.seen.append(self.net[0].weight.detach().clone())

    test_step = predict_step = validation_step

    def configure_optimizers(self):
        return adam(self.net)


class Stateful(DataLoader):
    """Goes on where it stopped, which Lightning needs to resume within an epoch."""

    position = resume_at = 0

    def __iter__(self):
        start, self.resume_at = self.resume_at, 0
        for self.position, batch in enumerate(super().__iter__(), start=1):
            if self.position > start:
                yield batch

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.resume_at = state["position"] % STEPS


class NoLog(Module):
    def predict_step(self, batch, index):
        self.seen.append(self.net[0].weight.detach().clone())


def trainer(folder, *callbacks, **options):
    defaults = {"max_epochs": EPOCHS, "num_sanity_val_steps": 0, "logger": False}
    options = defaults | options
    return lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        **options,
    )


def fit(folder, *others, module=None, ckpt=None, batch=16, val=True, make=None, **opts):
    callback = make or SwitchEMACallback(**OPTIONS)
    module = module or Module()
    run = trainer(folder, callback, *others, **opts)
    data = Stateful(loader().dataset, batch)
    run.fit(module, data, loader() if val else None, ckpt_path=ckpt)
    return callback, module, run
