"""The line that each trainer's page documents, with 50 steps an epoch.

With a decay that is not warmed up, every switch would undo almost all of an epoch: the
loss stays near its start. With the documented lines it is that of plain training.
"""

import logging
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from switch_ema import EMA

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
STEPS, BATCH, EPOCHS, RATE = 50, 8, 6, 0.05


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(STEPS * BATCH, 6, generator=generator)
    noise = 0.1 * torch.randn(len(x), 1, generator=generator)
    return TensorDataset(x, 3 * x.sum(1, keepdim=True) + noise)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 1)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=RATE)


def loop(model, optimizer, end_epoch=None, after_step=None):
    for _ in range(EPOCHS):
        for batch in DataLoader(data(), BATCH):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if after_step:
                after_step()
        if end_epoch:
            end_epoch()
    return model


def final_loss(model) -> float:
    with torch.no_grad():
        return loss_of(model, data().tensors).item()


def documented(page: str, pattern: str, **names):
    """Evaluate the expression that a page shows."""
    text = (PAGES / f"{page}.md").read_text()
    found = re.search(pattern, text)
    assert found, f"{page}.md has no {pattern}"
    return eval(found[0], names)


def with_pytorch(folder):
    model = network()
    optimizer = sgd(model)
    names = {"EMA": EMA, "model": model, "optimizer": optimizer}
    ema = documented("pytorch", r"\bEMA\(model, optimizer\)", **names)
    loop(model, optimizer, ema.end_epoch)
    return ema.averaged_copy()


def with_accelerate(folder):
    accelerate = pytest.importorskip("accelerate")
    from switch_ema.integrations.accelerate import prepare_averager

    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    model, optimizer = accelerator.prepare(model, sgd(model))
    names = {
        "prepare_averager": prepare_averager,
        "accelerator": accelerator,
        "model": model,
        "optimizer": optimizer,
    }
    averager = documented("accelerate", r"prepare_averager\(acc.*\)", **names)
    loop(model, optimizer, averager.end_epoch)
    return averager.averaged_copy()


def with_ignite(folder):
    engine = pytest.importorskip("ignite.engine")
    from switch_ema.integrations.ignite import SwitchEMAHandler

    model = network()
    optimizer = sgd(model)
    trainer = engine.create_supervised_trainer(model, optimizer, nn.functional.mse_loss)
    names = {"SwitchEMAHandler": SwitchEMAHandler, "model": model}
    names["optimizer"] = optimizer
    handler = documented("ignite", r"SwitchEMAHandler\(model.*\)", **names)
    handler.attach(trainer)
    trainer.run(DataLoader(data(), BATCH), max_epochs=EPOCHS)
    return handler.averager.averaged_copy()


def with_lightning(folder):
    lightning = pytest.importorskip("lightning.pytorch")
    from switch_ema.integrations.lightning import SwitchEMACallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return loss_of(self.net, batch)

        def configure_optimizers(self):
            return sgd(self.net)

    names = {"SwitchEMACallback": SwitchEMACallback}
    callback = documented("lightning", r"SwitchEMACallback\(decay=[\d.]+\)", **names)
    trainer = lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[callback],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Module(), DataLoader(data(), BATCH))
    return callback.averager.averaged_copy().net


def with_transformers(folder):
    transformers = pytest.importorskip("transformers")
    from switch_ema.integrations.transformers import SwitchEMACallback

    class Regression(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels):
            return {"loss": loss_of(self.net, (x, labels))}

    names = {"SwitchEMACallback": SwitchEMACallback}
    line = r"SwitchEMACallback\(decay=[\d.]+\)"
    callback = documented("transformers", line, **names)
    args = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    rows = [{"x": x, "labels": y} for x, y in data()]
    transformers.Trainer(
        Regression(), args, train_dataset=rows, callbacks=[callback]
    ).train()
    return callback.averager.averaged_copy().net


def with_mmengine(folder):
    pytest.importorskip("mmengine")
    from mmengine.model import BaseModel
    from mmengine.registry import HOOKS
    from mmengine.runner import Runner

    import switch_ema.integrations.mmengine  # noqa: F401  (registers the hook)

    class Model(BaseModel):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, y, mode="loss"):
            return {"loss": loss_of(self.net, (x, y))}

    hook = HOOKS.build(
        documented("mmengine", r'(?s)dict\(\s*type="SwitchEMAHook".*?\)', dict=dict)
    )
    model = Model()
    Runner(
        model,
        str(folder),
        train_dataloader=DataLoader(data(), BATCH),
        train_cfg={"by_epoch": True, "max_epochs": EPOCHS},
        optim_wrapper={"optimizer": sgd(model)},
        custom_hooks=[hook],
        log_level=logging.ERROR,
        experiment_name=str(folder / "run"),
    ).train()
    return hook.averager.averaged_copy().net


def with_timm(folder):
    pytest.importorskip("timm")
    from switch_ema.integrations.timm import SwitchEmaV3

    model = network()
    names = {"SwitchEmaV3": SwitchEmaV3, "model": model}
    average = documented("timm", r"SwitchEmaV3\(model, decay.*\)", **names)
    optimizer = sgd(model)
    loop(model, optimizer, average.eval, lambda: average.update(model))
    return average.module


def with_timms_script(folder):
    """Without the page's use_warmup, as the arguments of the script leave it."""
    pytest.importorskip("timm")
    from switch_ema.integrations.timm import SwitchEmaV3

    model = network()
    average = SwitchEmaV3(model, decay=0.999)
    optimizer = sgd(model)
    loop(model, optimizer, average.eval, lambda: average.update(model))
    return average.module


def with_keras(folder):
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "torch":
        pytest.skip("Keras runs on another backend")
    from switch_ema.integrations.keras import SwitchEMACallback

    start = network()
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.set_weights([start.weight.detach().numpy().T, start.bias.detach().numpy()])
    model.compile(keras.optimizers.SGD(RATE), "mse")
    names = {"SwitchEMACallback": SwitchEMACallback}
    callback = documented("keras", r"SwitchEMACallback\(decay=[\d.]+\)", **names)
    x, y = (tensor.numpy() for tensor in data().tensors)
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    model.fit(x, y, epochs=EPOCHS, callbacks=[callback], **options)
    with callback.averager.averaged(), torch.no_grad():
        weight, bias = (v.value.detach().clone() for v in model.trainable_variables)
    return lambda x: x @ weight + bias


TRAINERS = {
    name.removeprefix("with_"): function
    for name, function in list(globals().items())
    if name.startswith("with_")
}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_documented_line_learns_as_plain_training_does(trainer, tmp_path):
    reference = network()
    plain = final_loss(loop(reference, sgd(reference)))
    assert plain < 0.02 < 5 < final_loss(network())
    assert final_loss(TRAINERS[trainer](tmp_path)) < 1.1 * plain
