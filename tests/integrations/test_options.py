"""Every argument of every trainer's callback has a name that tools can read."""

import importlib
import inspect
import os

import pytest
import torch

from switch_ema.averaging.registry import METHODS, MethodOptions
from switch_ema.integrations.averages import CallbackOptions
from tests.integrations.helpers import adam, network

PLACES = {
    "accelerate": "prepare_averager",
    "ignite": "SwitchEMAHandler",
    "keras": "SwitchEMACallback",
    "lightning": "SwitchEMACallback",
    "mmengine": "AveragerHook",
    "transformers": "SwitchEMACallback",
}

CONFIG = """
trainer:
  accelerator: cpu
  logger: false
  callbacks:
    - class_path: switch_ema.integrations.lightning.SwitchEMACallback
      init_args:
        decay: half_life(500it)
        switch_every: {class_path: switch_ema.Steps, init_args: {n: 3}}
        live_share: 0.25
        count: any
        dtype: bfloat16
        exclude: ["*.bias"]
        best: {metric: loss, higher_is_better: false, error: 0.1}
        evaluate: both
        decays: [0.9, auto]
        log_averaging: true
"""


def place(trainer):
    if trainer == "keras":
        os.environ.setdefault("KERAS_BACKEND", "torch")
    pytest.importorskip(trainer)
    module = importlib.import_module(f"switch_ema.integrations.{trainer}")
    return getattr(module, PLACES[trainer])


@pytest.mark.parametrize("trainer", PLACES)
def test_signatures_name_all_options(trainer):
    parameters = inspect.signature(place(trainer)).parameters
    assert parameters.keys() >= MethodOptions.__annotations__.keys()
    kinds = {parameter.kind for parameter in parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    taken = {n for m in METHODS.values() for n in inspect.signature(m).parameters}
    assert taken - {"model", "optimizer"} <= parameters.keys()


MEASURED = PLACES | {"accelerate": "Averaging"}


@pytest.mark.parametrize("trainer", MEASURED)
def test_all_trainers_take_the_same_options_of_evaluation(trainer):
    place(trainer)
    module = importlib.import_module(f"switch_ema.integrations.{trainer}")
    parameters = inspect.signature(getattr(module, MEASURED[trainer])).parameters
    assert parameters.keys() >= CallbackOptions.__annotations__.keys()


@pytest.mark.parametrize("trainer", PLACES)
def test_wrong_options_are_refused_at_once(trainer):
    make, first = place(trainer), ()
    if trainer in ("accelerate", "ignite"):
        model = network()
        first = (model, adam(model))
    if trainer == "accelerate":
        import accelerate

        first = (accelerate.Accelerator(cpu=True), *first)
    with pytest.raises(TypeError, match="dekay"):
        make(*first, dekay=0.9)
    with pytest.raises(TypeError, match=r"ema takes no option 'live_share'.* decay"):
        make(*first, method="ema", live_share=0.5)
    with pytest.raises(ValueError, match="method must be"):
        make(*first, method="emma")
    with pytest.raises(ValueError, match="dtype must be 'float32' or"):
        make(*first, dtype="int8")
    with pytest.raises(ValueError, match="count must be 'round' or"):
        make(*first, count="each")


@pytest.mark.filterwarnings("ignore")
def test_a_config_of_lightning_cli_sets_every_argument(tmp_path):
    pytest.importorskip("jsonargparse")
    pytest.importorskip("lightning")
    from lightning.pytorch.cli import LightningCLI

    from switch_ema.integrations.lightning import SwitchEMACallback
    from tests.integrations import lightning_runs as shared

    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    options = ["--trainer.max_epochs=1", "--trainer.callbacks.switch_start=0"]
    cli = LightningCLI(
        shared.Module,
        run=False,
        args=["--config", str(config), *options],
        save_config_callback=None,
        trainer_defaults={
            "default_root_dir": str(tmp_path),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
        },
    )
    found = [one for one in cli.trainer.callbacks if isinstance(one, SwitchEMACallback)]
    cli.trainer.fit(cli.model, shared.loader(), shared.loader())
    averager = found[0].averager
    assert averager.switches == shared.STEPS // 3
    shadow = averager.averaged_tensors()
    assert shadow["net.0.weight"].dtype == torch.bfloat16
    assert "net.3.bias" not in shadow
    assert found[0].best.best_epoch == 1
    assert {
        "loss",
        "loss_live",
        "loss_ema_0.9",
        "loss_ema_auto",
        "averaging/decay",
    } <= cli.trainer.callback_metrics.keys()
    assert averager.current_decay == pytest.approx(0.5 ** (1 / 500))
