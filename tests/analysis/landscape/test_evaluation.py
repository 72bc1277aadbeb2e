"""Measuring at points of weight space: right, alike in both ways, without traces."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from switch_ema.analysis.landscape.directions import parameters_of, random_directions
from switch_ema.analysis.landscape.evaluation import evaluate_points
from switch_ema.analysis.probes import Probe, batch_size, classification

ROWS = np.linspace(-1, 1, 17)[:, None]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).mean(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()))


def perceptron():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def convolution():
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(36, 3))
    with torch.no_grad():
        for _ in range(3):
            model(2 * torch.randn(16, 1, 5, 5) + 1)
    return model


SHAPES = {
    "perceptron": (perceptron, (6,)),
    "convolution": (convolution, (1, 5, 5)),
    "attention": (Attention, (5, 8)),
    "tied": (Tied, (6,)),
}


def case(name="perceptron", sizes=(8, 8, 3)):
    """Return a model, a direction and a probe."""
    make, shape = SHAPES[name]
    model = make()
    batches = [(torch.randn(n, *shape), torch.randint(3, (n,))) for n in sizes]
    (direction,) = random_directions(parameters_of(model), seed=1, vectors="keep")
    return model, direction, Probe(classification, batches)


def by_hand(model, direction, batches, step):
    """Loss and accuracy over all examples at once, on a copy."""
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter += step * direction[name]
        inputs, labels = (torch.cat(part) for part in zip(*batches, strict=True))
        outputs = twin(inputs)
        right = (outputs.argmax(1) == labels).float().mean()
        return cross_entropy(outputs, labels).item(), 100 * right.item()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("vectorise", [True, False])
def test_both_ways_measure_what_a_copy_does(name, vectorise):
    model, direction, probe = case(name)
    found = evaluate_points(
        model, model.state_dict(), [direction], ROWS, [probe], vectorise=vectorise
    )
    assert bool(found.vectorised) is vectorise
    expected = [by_hand(model, direction, probe.batches, a) for a in ROWS[:, 0]]
    loss, accuracy = np.array(expected).T
    np.testing.assert_allclose(found.values["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(found.values["accuracy"], accuracy, rtol=1e-5)
    assert np.ptp(loss) > 0.05


def test_memory_changes_nothing_but_the_number_at_once():
    model, direction, probe = case()
    state = model.state_dict()
    one, all_ = (
        evaluate_points(
            model, state, [direction], ROWS, [probe], vectorise=True, memory=memory
        )
        for memory in (1, 2**30)
    )
    np.testing.assert_allclose(one.values["loss"], all_.values["loss"], rtol=1e-5)


def test_points_are_measured_at_once_only_where_it_is_worthwhile():
    model, direction, probe = case()

    def vectorised(rows=ROWS, memory=None):
        state = model.state_dict()
        return evaluate_points(
            model, state, [direction], rows, [probe], memory=memory
        ).vectorised

    assert vectorised() == {"loss", "accuracy"}
    assert not vectorised(memory=1000)
    assert not vectorised(rows=ROWS[:8])


def snapshot(model):
    tensors = [t.clone() for t in (*model.parameters(), *model.buffers())]
    objects = [id(t) for t in (*model.parameters(), *model.buffers())]
    modes = [module.training for module in model.modules()]
    return tensors, objects, modes, torch.get_rng_state()


def assert_untouched(before, after):
    assert before[1:3] == after[1:3]
    pairs = zip((*before[0], before[3]), (*after[0], after[3]), strict=True)
    assert all(torch.equal(old, new) for old, new in pairs)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("way", [True, False, "norm"])
def test_the_model_and_the_random_numbers_are_untouched(name, way):
    model, direction, probe = case(name)
    model.train()
    list(model.modules())[-1].eval()
    centre = {key: value + 1 for key, value in model.state_dict().items()}
    before = snapshot(model)
    kept = copy.deepcopy(centre)
    options = {"vectorise": way} if way != "norm" else {"recompute_norm": probe.batches}
    evaluate_points(model, centre, [direction], ROWS, [probe], **options)
    assert_untouched(before, snapshot(model))
    assert all(torch.equal(centre[key], kept[key]) for key in kept)


def test_everything_is_put_back_after_an_exception():
    model, direction, probe = case("convolution")
    calls = []

    def broken(model, batch):
        calls.append(torch.rand(1))
        if len(calls) > 4:
            raise OSError("disk")
        return classification(model, batch)

    before = snapshot(model)
    probe = Probe(broken, probe.batches)
    with pytest.raises(OSError, match="disk"):
        evaluate_points(model, model.state_dict(), [direction], ROWS, [probe])
    assert len(calls) > 4
    assert_untouched(before, snapshot(model))


def branches(model, batch):
    found = classification(model, batch)
    return found if found["loss"] > 1 else {**found, "loss": found["loss"] * 2}


def floats(model, batch):
    return {name: value.item() for name, value in classification(model, batch).items()}


def noisy(model, batch):
    return classification(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))


def training(model, batch):
    return classification(model.train(), batch)


@pytest.mark.parametrize("measure", [branches, floats, noisy, training])
def test_what_vmap_cannot_run_is_left_to_the_loop(measure):
    model, direction, probe = case("convolution")
    arguments = model, model.state_dict(), [direction], ROWS
    probe = Probe(measure, probe.batches)
    found = evaluate_points(*arguments, [probe])
    assert not found.vectorised
    slow = evaluate_points(*arguments, [probe], vectorise=False)
    np.testing.assert_array_equal(found.values["loss"], slow.values["loss"])
    with pytest.raises(RuntimeError, match="vectorise is True, but vmap failed"):
        evaluate_points(*arguments, [probe], vectorise=True)


def test_all_points_see_the_same_random_numbers():
    model, direction, probe = case()
    still = {name: 0 * step for name, step in direction.items()}
    found = evaluate_points(
        model, model.state_dict(), [still], ROWS, [Probe(noisy, probe.batches)]
    )
    assert np.ptp(found.values["loss"]) == 0


class KeepsReferences(nn.Module):
    """Does not see weights that are put in the place of its own."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.kept = [self.head.weight]

    def forward(self, x):
        return x @ self.kept[0].T + self.head.bias


def test_models_that_vmap_gets_wrong_are_left_to_the_loop():
    model = KeepsReferences()
    _, _, probe = case()
    (direction,) = random_directions(parameters_of(model), seed=0, vectors="keep")
    arguments = model, model.state_dict(), [direction], ROWS, [probe]
    found = evaluate_points(*arguments)
    assert not found.vectorised
    expected = [by_hand(model, direction, probe.batches, 0)[0]]
    np.testing.assert_allclose(found.values["loss"][8], expected[0], rtol=1e-5)
    assert np.ptp(found.values["loss"]) > 0.1
    with pytest.raises(RuntimeError, match="differs from the loop's"):
        evaluate_points(*arguments, vectorise=True)


def test_statistics_are_recomputed_at_every_point():
    model, direction, probe = case("convolution")
    state = model.state_dict()
    arguments = model, state, [direction], [[0.0], [0.7]], [probe]
    plain = evaluate_points(*arguments).values["loss"]
    found = evaluate_points(*arguments, recompute_norm=iter(probe.batches[:2]))
    assert np.abs(found.values["loss"] - plain).min() > 1e-3
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter += 0.7 * direction[name]
        seen = [twin[0](x) for x, _ in probe.batches[:2]]
        twin[1].running_mean = torch.stack([s.mean((0, 2, 3)) for s in seen]).mean(0)
        twin[1].running_var = torch.stack([s.var((0, 2, 3)) for s in seen]).mean(0)
    nothing = {name: torch.zeros_like(step) for name, step in direction.items()}
    expected, _ = by_hand(twin, nothing, probe.batches, 0)
    assert found.values["loss"][1] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("vectorise", [True, False])
def test_points_that_are_not_finite_are_gaps(vectorise):
    model, direction, probe = case()
    rows = np.linspace(-1, 1, 9)[:, None] * 1e38
    found = evaluate_points(
        model, model.state_dict(), [direction], rows, [probe], vectorise=vectorise
    )
    gap = np.isnan(found.values["loss"])
    assert gap.tolist() == [True] * 4 + [False] + [True] * 4
    assert np.array_equal(np.isnan(found.values["accuracy"]), gap)


def test_probes_have_their_own_batches_and_weights():
    model, direction, probe = case()
    other = Probe(
        lambda model, batch: {"outputs": model(batch["x"]).mean()},
        [{"x": torch.ones(2, 6)}, {"x": torch.zeros(3, 6)}],
        weight=lambda batch: 1.0 if batch["x"].any() else 3.0,
    )
    found = evaluate_points(
        model, model.state_dict(), [direction], [[0.0]], [probe, other]
    )
    with torch.no_grad():
        one, zero = model(torch.ones(6)).mean(), model(torch.zeros(6)).mean()
    assert found.values["outputs"][0] == pytest.approx(float(one + 3 * zero) / 4)
    assert list(found.values) == ["loss", "accuracy", "outputs"]


def test_wrapped_models_are_measured_under_plain_names():
    model, direction, probe = case()
    arguments = model.state_dict(), [direction], ROWS, [probe]
    plain = evaluate_points(model, *arguments).values["loss"]
    wrapped = evaluate_points(nn.DataParallel(model), *arguments).values["loss"]
    np.testing.assert_array_equal(plain, wrapped)


def bad(message, change):
    return pytest.param(change, message, id=message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        bad("at least one probe", {"probes": []}),
        bad("batches of positive weight", {"probes": [Probe(classification, [])]}),
        bad("2 columns", {"directions": [{}, {}]}),
        bad("shape \\[0, 1\\]", {"coefficients": np.zeros((0, 1))}),
        bad("has no nothing", {"directions": [{"nothing": torch.ones(1)}]}),
        bad("0.weight is \\[1\\]", {"directions": [{"0.weight": torch.ones(1)}]}),
        bad("missing: 0.weight", {"centre": {}}),
        bad("memory must be", {"memory": 0}),
        bad(
            "does not support recompute_norm", {"recompute_norm": [], "vectorise": True}
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    model, direction, probe = case()
    fitting = {
        "centre": model.state_dict(),
        "directions": [direction],
        "coefficients": ROWS,
        "probes": [probe],
    }
    with pytest.raises(ValueError, match=message):
        evaluate_points(model, **{**fitting, **change})


def test_measurements_that_clash_or_are_not_numbers_are_refused():
    model, direction, probe = case()
    arguments = model, model.state_dict(), [direction], ROWS
    with pytest.raises(ValueError, match="accuracy occurs twice"):
        evaluate_points(*arguments, [probe, probe])
    many = Probe(lambda model, batch: {"outputs": model(batch[0])}, probe.batches)
    with pytest.raises(ValueError, match="outputs is not"):
        evaluate_points(*arguments, [many])


def test_the_size_of_a_batch_is_that_of_its_first_tensor():
    x = torch.zeros(4, 2)
    assert {batch_size(b) for b in (x, (x, 1), [[x], x], {"a": x, "b": 0})} == {4.0}
    for batch in (3, [], {}, "text"):
        with pytest.raises(ValueError, match="must contain tensors"):
            batch_size(batch)
