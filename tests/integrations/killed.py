"""One training per trainer that is killed, or resumed; for test_killed.py.

Each trainer writes its checkpoint in its own way: within an epoch, after AT steps,
where it can resume there, else after the first epoch. The kill comes in the next step.
"""

import importlib
import os
import signal
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch

from switch_ema import Averager, SwitchEMA
from tests.integrations.helpers import (
    EPOCHS,
    OPTIONS,
    STEPS,
    adam,
    loader,
    loss_of,
    network,
)

AT = STEPS + 2


def die_after(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Let the process be killed in its step number ``steps``."""
    left = [steps]

    def count(*_) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer.register_step_post_hook(count)


def dying_adam(model: torch.nn.Module, steps: int | None) -> torch.optim.Optimizer:
    optimizer = adam(model)
    if steps is not None:
        die_after(optimizer, steps)
    return optimizer


def plain_pytorch(folder: Path, dies: bool, resumes: bool) -> Averager:
    model = network()
    optimizer = dying_adam(model, AT + 1 if dies else None)
    sema = SwitchEMA(model, optimizer, **OPTIONS)
    file = folder / "training.pt"
    if resumes:
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sema.load_state_dict(saved["sema"])
    while sema.epochs < EPOCHS:
        for batch in islice(loader(), sema.steps % STEPS, None):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if sema.steps == AT:
                state = {
                    "model": sema.live_state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "sema": sema.state_dict(),
                }
                torch.save(state, file)
        sema.end_epoch()
    return sema


def lightning(folder: Path, dies: bool, resumes: bool) -> Averager:
    from lightning.pytorch.callbacks import ModelCheckpoint

    from tests.integrations.lightning_runs import Module, fit

    class Dying(Module):
        def configure_optimizers(self):
            return dying_adam(self.net, AT + 1 if dies else None)

    keep = ModelCheckpoint(folder, "{step}", every_n_train_steps=AT, save_top_k=-1)
    ckpt = folder / f"step={AT}.ckpt" if resumes else None
    callback, _, _ = fit(folder, keep, module=Dying(), ckpt=ckpt)
    return callback.averager


def transformers(folder: Path, dies: bool, resumes: bool) -> Averager:
    from tests.integrations import test_transformers as shared

    model = shared.language_model()
    callback = shared.SwitchEMACallback(**OPTIONS)
    run = shared.trainer(
        folder,
        callback,
        model,
        save_strategy="steps",
        save_steps=AT,
        optim="adamw_torch",
    )
    if dies:
        die_after(run.create_optimizer(), AT + 1)
    run.train(resume_from_checkpoint=resumes)
    return callback.averager


def accelerate(folder: Path, dies: bool, resumes: bool) -> Averager:
    from accelerate import Accelerator

    from switch_ema.integrations.accelerate import prepare_averager

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = dying_adam(model, AT + 1 if dies else None)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader())
    averager = prepare_averager(accelerator, model, optimizer, **OPTIONS)
    if resumes:
        accelerator.load_state(folder / "state")
    while averager.epochs < EPOCHS:
        for batch in accelerator.skip_first_batches(data, averager.steps % STEPS):
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            if averager.steps == AT:
                accelerator.save_state(folder / "state")
        averager.end_epoch()
    return averager


def ignite(folder: Path, dies: bool, resumes: bool) -> Averager:
    from ignite.engine import Events
    from ignite.engine.deterministic import DeterministicEngine
    from ignite.handlers import Checkpoint, DiskSaver

    from switch_ema.integrations.ignite import SwitchEMAHandler

    model = network()
    optimizer = dying_adam(model, AT + 1 if dies else None)

    def step(engine, batch):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()

    trainer = DeterministicEngine(step)  # resumes within an epoch
    handler = SwitchEMAHandler(model, optimizer, **OPTIONS)
    handler.attach(trainer)
    parts = {"model": handler.live, "averaging": handler}
    parts |= {"optimizer": optimizer, "trainer": trainer}
    saver = DiskSaver(str(folder), require_empty=False)
    save = Checkpoint(parts, saver, filename_pattern="training.pt")
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=AT), save)
    if resumes:
        saved = torch.load(folder / "training.pt", weights_only=False)
        Checkpoint.load_objects(parts, saved)
    trainer.run(loader(), max_epochs=EPOCHS)
    return handler.averager


def mmengine(folder: Path, dies: bool, resumes: bool) -> Averager:
    from switch_ema.integrations.mmengine import AveragerHook
    from tests.integrations import mmengine_runs as shared

    # MMEngine 0.10 saves objects of its own, which torch 2.6 and later refuse.
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    model, hook = shared.Model(), AveragerHook(**OPTIONS)
    run = shared.runner(folder, hook, model, resume=resumes)
    if dies:
        die_after(run.build_optim_wrapper(run.optim_wrapper).optimizer, STEPS + 1)
    run.train()
    return hook.averager


def keras(folder: Path, dies: bool, resumes: bool) -> Averager:
    from tests.integrations import test_keras as shared

    class Save(shared.keras.callbacks.Callback):
        steps = 0

        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.model.save(folder / "model.keras")
                torch.save(averaging.state_dict(), folder / "averager.pt")

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if dies and self.steps == STEPS + 1:
                os.kill(os.getpid(), signal.SIGKILL)

    averaging = shared.SwitchEMACallback(**OPTIONS)
    model = shared.network()
    if resumes:
        model = shared.keras.models.load_model(folder / "model.keras")
        averaging.load_state_dict(torch.load(folder / "averager.pt", weights_only=True))
    shared.fit(model, averaging, Save(), initial_epoch=int(resumes))
    return averaging.averager


TRAINERS: dict[str, tuple[Callable[[Path, bool, bool], Averager], str]] = {
    "plain PyTorch": (plain_pytorch, "torch"),
    "Lightning": (lightning, "tests.integrations.lightning_runs"),
    "Transformers": (transformers, "tests.integrations.test_transformers"),
    "Accelerate": (accelerate, "switch_ema.integrations.accelerate"),
    "Ignite": (ignite, "switch_ema.integrations.ignite"),
    "MMEngine": (mmengine, "tests.integrations.mmengine_runs"),
    "Keras": (keras, "tests.integrations.test_keras"),
}
"""The trainings, and what is imported before their processes are forked."""


def run(trainer: str, folder: Path) -> None:
    """Train in three processes: one is killed, one resumes, one is left in peace.

    What they return or how they end is in ``folder`` afterwards.
    """
    torch.set_num_threads(1)
    train, module = TRAINERS[trainer]
    importlib.import_module(module)
    for name, part, dies, resumes in (
        ("killed", "part", True, False),
        ("resumed", "part", False, True),
        ("whole", "whole", False, False),
    ):
        (folder / part).mkdir(exist_ok=True)
        child = os.fork()  # each has the imports, and nothing of another's training
        if child == 0:
            averager = train(folder / part, dies, resumes)
            torch.save(_end(averager), folder / f"{name}.pt")
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (folder / f"{name}.status").write_text(str(status))


def _end(averager: Averager) -> dict:
    counts = averager.steps, averager.epochs, averager.switches
    averaged, live = averager.averaged_state_dict(), averager.live_state_dict()
    return {"counts": counts, "averaged": averaged, "live": live}
