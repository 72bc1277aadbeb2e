"""Compiling, channels_last and TF32 train the weights of eager float32 on CPUs."""

import dataclasses
import json
from functools import partialmethod

import pytest
import torch
from torch import nn

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.recipe import Recipe
from switch_ema.bench.train.checkpoints import checkpoint_path
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training, train_cell
from switch_ema.bench.train.precision import resolved_precision, using_tf32

CLOSE = 1e-5
"""Relative difference of trained weights that is stated in docs/comparing.md."""

TASK = """
import torch
from torch import nn

from switch_ema.bench.task import Batches, Metric, Recipe, Task


class Pictures(Task):
    metrics = (Metric(name="error", higher_is_better=False),)
    recipe = Recipe(epochs=2)

    def __init__(self, seed):
        super().__init__(seed)
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(24, 3, 8, 8, generator=generator)
        self.y = self.x.mean((1, 2, 3))[:, None]

    def model(self):
        layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 8, 3)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                             nn.Linear(8, 1))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_loader(self, epoch):
        return Batches((self.x, self.y), 8, self.seed, epoch=epoch)

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model):
        return {"error": self.loss(model, (self.x, self.y)).item()}
"""


@pytest.fixture
def cell(tmp_path):
    path = tmp_path / "pictures.py"
    path.write_text(TASK)
    methods = ("plain", "ema:decay=0.9")
    config = CompareConfig(tasks=(f"{path}:Pictures",), methods=methods, seeds=1)
    return make_plan(config)[0]


def trained(cell, folder, **options):
    cell = dataclasses.replace(cell, recipe=dataclasses.replace(cell.recipe, **options))
    result = train_cell(cell, RunContext(folder, "cpu"))
    state = torch.load(checkpoint_path(folder, cell), weights_only=True)
    return result, state


@pytest.mark.parametrize("option", ["compile", "channels_last", "tf32"])
def test_options_of_speed_train_the_same_weights(cell, tmp_path, option, monkeypatch):
    # Inductor takes a minute to compile; it passes, too.
    eager_graphs = partialmethod(nn.Module.compile, backend="aot_eager")
    monkeypatch.setattr(nn.Module, "compile", eager_graphs)
    plain, eager = trained(cell, tmp_path)
    result, fast = trained(cell, tmp_path, **{option: True})
    assert "Precision" not in plain.trained
    assert result.trained["Precision"]
    shadows = (state["averagers"]["ema:decay=0.9"]["shadow"] for state in (eager, fast))
    for own, known in ((fast["model"], eager["model"]), reversed([*shadows])):
        for name, weights in known.items():
            scale = weights.double().norm().item() or 1.0
            apart = (own[name].double() - weights.double()).norm().item()
            assert apart <= (0 if option == "tf32" else CLOSE * scale), name


def test_channels_last_reaches_weights_batches_and_shadows(cell, tmp_path):
    recipe = dataclasses.replace(cell.recipe, channels_last=True)
    training = Training(
        dataclasses.replace(cell, recipe=recipe), RunContext(tmp_path, "cpu")
    )
    layout = torch.channels_last
    assert training.model[0].weight.is_contiguous(memory_format=layout)
    seen = []
    training.model.register_forward_pre_hook(lambda model, given: seen.append(given[0]))
    training._train_epoch()
    assert all(images.is_contiguous(memory_format=layout) for images in seen)


def test_auto_is_bf16_on_a_gpu_that_has_it(monkeypatch):
    assert resolved_precision("auto", "cpu") == "no"
    assert resolved_precision("fp16", "cpu") == "fp16"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for has_it, found in ((True, "bf16"), (False, "no")):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation, it=has_it: it
        )
        assert resolved_precision("auto", None) == found
        assert resolved_precision("auto", "cpu") == "no"


def test_a_run_keeps_its_precision(cell, tmp_path):
    recipe = dataclasses.replace(cell.recipe, precision="auto")
    auto = dataclasses.replace(cell, recipe=recipe)
    before = RunContext(tmp_path, "cpu", precision="autocast to bf16")
    with pytest.raises(UsageError, match="float32 here, but finished trainings of"):
        Training(auto, before)
    Training(auto, dataclasses.replace(before, precision=""))
    Training(cell, before)  # a stated precision is part of the cell instead


def test_tf32_is_restored():
    before = torch.backends.cuda.matmul.allow_tf32
    with using_tf32(True):
        assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_options_at_their_defaults_keep_the_names_of_stored_cells():
    config = CompareConfig(tasks=("digits",))
    assert not {"compile", "tf32", "channels_last"} & set(json.loads(config.to_json()))
    assert config.recipe_for(Recipe(compile=True)).compile
    given = CompareConfig(tasks=("digits",), compile=True)
    assert given.recipe_for(Recipe()).compile
    assert given.identity != config.identity
