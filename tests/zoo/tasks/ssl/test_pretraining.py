"""Every method trains through the real loop, and its options are checked."""

import math

import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task, load_task_class
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.task import CONTROL_EPOCHS
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training, train_cell
from switch_ema.zoo.data import sources
from switch_ema.zoo.tasks.ssl.pretraining import Pretraining
from switch_ema.zoo.tasks.ssl.settings import (
    BARLOW_TWINS,
    MOCO_V2,
    SIMCLR,
    paper_optimizer,
)

CONVOLUTIONAL = ("simclr", "moco-v2", "byol", "barlow-twins")
PATCHED = ("moco-v3", "simmim", "a2mim", "mae")
TINY = {
    **{name: f"{name}:size=40,batch=20" for name in CONVOLUTIONAL},
    **{name: f"{name}:size=40,batch=20,network=deit-t" for name in PATCHED},
}


@pytest.mark.parametrize("name", TINY)
def test_trains_plainly_with_an_average_and_with_switches(name, tmp_path):
    methods = ("plain", "ema", "switch-ema")
    config = CompareConfig(tasks=(TINY[name],), methods=methods, seeds=1, epochs=2)
    curves = {}
    for cell in make_plan(config):
        result = train_cell(cell, RunContext(tmp_path, "cpu"))
        assert result.status == "done", result.message
        curves |= result.values
    assert list(curves) == list(methods)
    for metrics in curves.values():
        assert set(metrics) == {"accuracy", "knn"}
        for (first,), (second,) in metrics.values():
            assert math.isfinite(first) and 0 <= second <= 100


def test_fine_tuning_is_a_protocol_too():
    task = create_task("simclr:size=60,protocol=fine-tune", (0,))
    torch.manual_seed(0)
    model = task.model().eval()
    with torch.no_grad():
        tuned = task.evaluate(model)
    assert tuned["knn"] == create_task("simclr:size=60", (0,)).evaluate(model)["knn"]
    assert tuned["accuracy"] > 10


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("simclr:dataset=mnist1d", "dataset must be"),
        ("simclr:network=deit-s", "network must be 'resnet18' or 'resnet50'"),
        ("mae:network=resnet18", "network must be"),
        ("byol:scale=large", "scale must be"),
        ("byol:scale=paper", "dataset at scale 'paper' must be"),
        ("byol:protocol=svm", "protocol must be"),
        ("byol:size=3000", "size must be at most 1000, got 3000"),
        ("byol:batch=1", "batch must be"),
        (
            "byol:scale=paper,dataset=cifar100,batch=300",
            "batch must be a divisor of the paper's 4096, got 300",
        ),
    ],
)
def test_bad_options(spec, message):
    with pytest.raises(UsageError, match=message):
        create_task(spec, (0,))


def test_a_folder_of_stl10_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv(sources.FOLDER, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        UsageError, match=r"stl10 was not found \(.*: set SWITCH_EMA_DATA"
    ):
        create_task("byol:dataset=stl10", (0,))
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    (folder / "train_X.bin").write_bytes(b"")
    with pytest.raises(UsageError, match=r"lacks stl10_binary/train_y\.bin"):
        create_task("byol:dataset=stl10", (0,))


def test_the_control_is_evaluated_after_the_same_epochs():
    task = create_task("simclr:size=40,batch=20,protocol_every=3", (0,))
    model = task.model().eval()
    due = []
    for epoch in (1, 2, CONTROL_EPOCHS + 1, CONTROL_EPOCHS + 2):
        task.train_loader(epoch)
        with torch.no_grad():
            due.append(math.isfinite(task.evaluate(model)["accuracy"]))
    assert due == [False, True, False, True]


def test_the_papers_recipe_at_its_scale():
    for name, epochs, clip, decay in (
        ("simclr", 1000, None, 0.999),
        ("moco-v2", 1000, None, 0.998),
        ("moco-v3", 1000, 5.0, 0.99),
    ):
        task_class, spec = load_task_class(f"{name}:scale=paper,dataset=cifar100")
        recipe = task_class.recipe_for(spec.options)
        assert (recipe.epochs, recipe.clip) == (epochs, clip)
        assert recipe.methods["switch-ema"] == {"decay": decay}
        assert recipe.schedule == "cosine"


def test_a_smaller_batch_accumulates_up_to_the_papers():
    for given, accumulate in (("", 1), (",batch=512", 8), (",batch=8192", 1)):
        task = f"byol:scale=paper,dataset=cifar100{given}"
        task_class, spec = load_task_class(task)
        assert task_class.recipe_for(spec.options).accumulate == accumulate


def test_lars_neither_decays_nor_adapts_vectors():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = paper_optimizer(SIMCLR, model, batch=1024)
    matrices, vectors = optimizer.param_groups
    assert [tuple(p.shape) for p in matrices["params"]] == [(2, 3)]
    assert len(vectors["params"]) == 3
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (1e-6, 0)
    assert matrices["lr"] == pytest.approx(4.8 / 4)
    assert not vectors["always_adapt"]


def test_barlow_twins_trains_vectors_at_0_024_of_the_rate():
    """Published: rates of 0.2 for weights, 0.0048 for biases and norms."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    matrices, vectors = paper_optimizer(BARLOW_TWINS, model, batch=2048).param_groups
    assert matrices["lr"] == pytest.approx(1.6)
    assert vectors["lr"] == pytest.approx(1.6 * 0.0048 / 0.2)


def test_sgd_of_moco_v2_decays_every_tensor():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    (group,) = paper_optimizer(MOCO_V2, model, batch=256).param_groups
    assert (len(group["params"]), group["weight_decay"]) == (4, 1e-4)


@pytest.mark.parametrize("name", ["byol", "moco-v2"])
def test_the_average_is_probed_not_the_student(name, tmp_path, monkeypatch):
    """OpenMixup probes the online encoder; all our columns show the average."""
    seen = []

    def evaluate(task, model):
        teacher = task.averager.averaged_tensors()
        seen.append(all(torch.equal(p, teacher[n]) for n, p in live(model)))
        return {"accuracy": 0.0, "knn": 0.0}

    def live(model):
        return model.named_parameters()

    monkeypatch.setattr(Pretraining, "evaluate", evaluate)
    methods = ("ema:decay=0.9",)
    config = CompareConfig(tasks=(TINY[name],), methods=methods, seeds=1, epochs=1)
    (cell,) = make_plan(config)
    training = Training(cell, RunContext(tmp_path, "cpu"))
    training.run()
    teacher = training.task.averager.averaged_tensors()
    assert seen == [True]
    assert not all(torch.equal(p, teacher[n]) for n, p in live(training.model))
