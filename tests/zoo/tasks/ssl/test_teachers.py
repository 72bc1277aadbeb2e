"""Methods that teach, in the training loop: against loops with deep copies."""

import copy
import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from switch_ema.averaging.methods.reference import ReferenceEMA, ReferenceSwitchEMA
from switch_ema.averaging.schedules.decay import cosine
from switch_ema.bench.errors import UsageError
from switch_ema.bench.methods import as_teacher, parse_method
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.task import Recipe
from switch_ema.bench.train import loop
from switch_ema.bench.train.checkpoints import checkpoint_path
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training
from switch_ema.zoo.tasks import registry
from switch_ema.zoo.tasks.registry import TASKS
from switch_ema.zoo.tasks.ssl.byol import BYOL
from switch_ema.zoo.tasks.ssl.moco_v2 import MoCoV2


def same(first, second):
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def fitted(text, **options):
    options = {"steps": 10, "final_decay": 1.0, "exclude": (), **options}
    return as_teacher(parse_method(text, {}), **options).spec.options


def test_a_number_becomes_a_cosine_unless_told_otherwise():
    assert fitted("ema:decay=0.9")["decay"] == cosine(0.9, steps=10, final=1.0)
    late = fitted("ema:decay=0.9", final_decay=0.8)["decay"]
    assert late == cosine(0.9, steps=10, final=0.9)
    assert fitted("ema:decay=0.9,warmup=none")["decay"] == 0.9
    assert fitted("plain", exclude=("queue",)) == {}
    assert "decay" not in fitted("swa")


def test_what_is_no_weight_is_left_out_beside_what_the_user_leaves_out():
    queue = ("queue",)
    assert fitted("ema", exclude=queue)["exclude"] == ["queue"]
    method = parse_method("ema", {})
    for given in ("norm", ("norm",)):
        spec = dataclasses.replace(method.spec, options={"exclude": given})
        method = dataclasses.replace(method, spec=spec)
        options = {"steps": 1, "final_decay": 1.0, "exclude": queue}
        found = as_teacher(method, **options).spec.options
        assert found["exclude"] == ["queue", "norm"]


def test_methods_that_teach_train_alone():
    methods = ("plain", "ema", "swa", "switch-ema")
    for task, groups in (
        ("byol", [(method,) for method in methods]),
        ("simclr", [("plain", "ema", "swa"), ("switch-ema",)]),
    ):
        config = CompareConfig(tasks=(task,), methods=methods, seeds=1)
        assert [cell.methods for cell in make_plan(config)] == groups


def test_optimizers_that_ask_twice_are_refused_where_there_is_a_queue():
    make_plan(CompareConfig(tasks=("byol",), optimizer="sam", seeds=1))
    with pytest.raises(UsageError, match="keeps a queue, which sam would fill twice"):
        make_plan(CompareConfig(tasks=("moco-v2",), optimizer="sam", seeds=1))


class Double:
    """In float64, so that two ways of computing differ by rounding of 1e-16 only."""

    def model(self):
        return super().model().double()

    def _draw(self, images, generator):
        return tuple(view.double() for view in super()._draw(images, generator))

    def evaluate(self, model):
        return {"accuracy": 0.0, "knn": 0.0}


class DoubleBYOL(Double, BYOL):
    pass


class DoubleMoCoV2(Double, MoCoV2):
    pass


def byol_by_hand(student, teacher, views, queue):
    total = 0.0
    for mine, other in (views, views[::-1]):
        prediction = normalize(student.predictor(student.embedder(mine)), dim=1)
        with torch.no_grad():
            target = normalize(teacher.embedder(other), dim=1)
        total += (prediction - target).square().sum(1).mean()
    return total


def moco_by_hand(student, teacher, views, queue):
    query = normalize(student.embedder(views[0]), dim=1)
    with torch.no_grad():
        key = normalize(teacher.embedder(views[1]), dim=1)
    old = torch.stack(queue)
    similarities = torch.cat([(query * key).sum(1, keepdim=True), query @ old.T], 1)
    # The oldest leave at the end of a plain list, the newest come in at its front.
    queue[:] = [*key.flip(0), *queue][: len(queue)]
    return cross_entropy(similarities / 0.2, torch.zeros(len(query), dtype=torch.long))


def train_by_hand(task, method, epochs, loss_of):
    """Train with a deep copy as teacher and the plain recursion over dictionaries."""
    torch.manual_seed(0)
    student = task.model().train()
    teacher = copy.deepcopy(student)
    # lightly's queue begins in the order of its places, so the first is replaced first.
    queue = list(student.queue.memory_bank.bank.flip(0)) if task.memory else []
    optimizer = task.optimizer(student)

    def weights():
        return {
            name: tensor.detach().clone()
            for name, tensor in student.state_dict().items()
            if tensor.is_floating_point() and not name.startswith("queue")
        }

    decay = cosine(
        0.7, steps=epochs * len(task.train_loader(0)), final=task.final_decay
    )
    make = {"ema": ReferenceEMA, "switch-ema": ReferenceSwitchEMA}.get(method)
    reference = None if make is None else make(weights(), decay)
    for epoch in range(epochs):
        for views in task.train_loader(epoch):
            optimizer.zero_grad()
            loss_of(student, teacher, views, queue).backward()
            optimizer.step()
            if reference is not None:
                reference.after_step(weights())
            shown = weights() if reference is None else reference.shadow
            teacher.load_state_dict(shown, strict=False)
        if reference is not None:
            student.load_state_dict(reference.after_epoch(weights()), strict=False)
    return weights(), shown, queue


@pytest.mark.parametrize("method", ["plain", "ema", "switch-ema"])
@pytest.mark.parametrize(
    ("name", "task_class", "loss_of"),
    [("byol", DoubleBYOL, byol_by_hand), ("moco-v2", DoubleMoCoV2, moco_by_hand)],
)
def test_the_loop_trains_as_the_reference_recursion_with_deep_copies(
    tmp_path, monkeypatch, method, name, task_class, loss_of
):
    monkeypatch.setitem(TASKS, name, f"{__name__}:{task_class.__name__}")
    monkeypatch.setattr(registry, "extra_of", lambda name: "self-supervised")
    epochs, decay = 3, {"decay": 0.7}
    recipe = Recipe(epochs=epochs, methods={"ema": decay, "switch-ema": decay})
    cell = Cell(f"{name}:size=60,batch=20", None, recipe, (method,), (0,))
    training = Training(cell, RunContext(tmp_path, "cpu"))
    training.run()
    task = task_class(0, size=60, batch=20)
    live, shadow, queue = train_by_hand(task, method, epochs, loss_of)
    close = {"rtol": 1e-6, "atol": 1e-9}  # Adam divides by small numbers
    state = training.model.state_dict()
    for key, tensor in live.items():
        torch.testing.assert_close(state[key], tensor, **close)
    averager = training.averagers[method]
    if averager is not None:
        average = averager.averaged_tensors()
        for key, tensor in shadow.items():
            torch.testing.assert_close(average[key], tensor, **close)
        assert averager.switches == (epochs if method == "switch-ema" else 0)
    if queue:
        bank = training.model.queue.memory_bank
        newest = torch.roll(bank.bank, -int(bank.bank_ptr), 0).flip(0)
        torch.testing.assert_close(newest, torch.stack(queue), **close)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("method", ["plain", "ema", "switch-ema"])
def test_a_training_with_a_queue_resumes_bit_for_bit(tmp_path, monkeypatch, method):
    decay = {"decay": 0.7}
    recipe = Recipe(epochs=3, methods={"ema": decay, "switch-ema": decay})
    cell = Cell("moco-v2:size=60,batch=20", None, recipe, (method,), (0,))
    whole = Training(cell, RunContext(tmp_path / "whole", "cpu")).run()
    steps, take_step = 0, loop.take_step

    def dies(*arguments):
        nonlocal steps
        steps += 1
        if steps == 5:  # in the second epoch
            raise Killed
        return take_step(*arguments)

    monkeypatch.setattr(loop, "take_step", dies)
    with pytest.raises(Killed):
        Training(cell, RunContext(tmp_path / "parts", "cpu")).run()
    monkeypatch.undo()
    resumed = Training(cell, RunContext(tmp_path / "parts", "cpu")).run()
    assert resumed.values == whole.values
    first, second = (
        torch.load(checkpoint_path(tmp_path / name, cell), weights_only=True)
        for name in ("whole", "parts")
    )
    assert "queue.memory_bank.bank" in first["model"]
    assert same(first["model"], second["model"])
    for label, averager in first["averagers"].items():
        assert same(averager["shadow"], second["averagers"][label]["shadow"])
        assert not any(name.startswith("queue") for name in averager["shadow"])
