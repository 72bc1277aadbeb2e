"""Averagers of prepared models: same weights, saved and loaded with the state."""

import pytest
import torch
import torch.distributed as dist

from switch_ema import load_weights
from tests.averaging.distributed.processes import run
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import (
    CURVES,
    EPOCHS,
    OPTIONS,
    SCORES,
    STEPS,
    adam,
    assert_agree,
    assert_both_curves,
    assert_close,
    loader,
    loss_of,
    network,
    plain,
    sgd,
    small_network,
)

accelerate = pytest.importorskip("accelerate")
from accelerate.tracking import GeneralTracker  # noqa: E402

from switch_ema.integrations.accelerate import Averaging, prepare_averager  # noqa: E402
from switch_ema.integrations.best import BestBy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def prepared(
    accumulate=1, batch=16, method="switch-ema", make=prepare_averager, **options
):
    accelerator = accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulate,
        log_with=options.pop("log_with", None),
    )
    model = network()
    model, optimizer, data = accelerator.prepare(model, adam(model), loader(batch))
    averager = make(accelerator, model, optimizer, method, **(OPTIONS | options))
    return accelerator, model, optimizer, data, averager


def train(accelerator, model, optimizer, data, averager, epochs=EPOCHS):
    for _ in range(epochs):
        for batch in data:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
        averager.end_epoch()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_equals_the_plain_loop(accumulate):
    run = prepared(accumulate, 16 // accumulate)
    train(*run)
    reference = plain(batch=16 // accumulate, accumulate=accumulate)
    assert_agree(run[-1], reference)
    assert run[-1].steps == EPOCHS * STEPS


@pytest.mark.parametrize("inside", [False, True])
def test_resuming_is_bit_for_bit_also_if_saved_inside_averaged(tmp_path, inside):
    whole = prepared()
    train(*whole)

    first = prepared()
    train(*first, epochs=1)
    if inside:
        with first[-1].averaged():
            first[0].save_state(tmp_path)
    else:
        first[0].save_state(tmp_path)

    second = prepared()
    second[0].load_state(tmp_path)
    train(*second, epochs=EPOCHS - 1)
    assert_same(whole[-1].averaged_state_dict(), second[-1].averaged_state_dict())
    assert_same(whole[-1].live_state_dict(), second[-1].live_state_dict())
    assert second[-1].switches == EPOCHS


def test_several_optimizers_and_one_without_a_wrapper():
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    body, head = adam(model[:2]), adam(model[3])
    model, body = accelerator.prepare(model, body)
    averager = prepare_averager(accelerator, model, [body, head], "ema", **OPTIONS)
    of_body, of_any = (
        prepare_averager(accelerator, model, [body, head], "ema", count=c, **OPTIONS)
        for c in (body, "any")
    )
    for batch in loader():
        accelerator.backward(loss_of(model, batch))
        body.step()
        head.step()
    assert averager.steps == of_body.steps == STEPS
    assert of_any.steps == 2 * STEPS


def test_a_saved_average_loads_into_a_prepared_model(tmp_path):
    run = prepared(method="ema")
    train(*run, epochs=1)
    torch.save(run[-1].averaged_state_dict(), tmp_path / "average.pt")
    _, model, *_ = prepared()
    load_weights(model, torch.load(tmp_path / "average.pt", weights_only=True))
    assert_same(run[-1].averaged_state_dict(), dict(model.state_dict()))


class Tracker(GeneralTracker):
    """One of the user's own, as Accelerate documents it."""

    name, requires_logging_directory = "notes", False

    def __init__(self):
        super().__init__(_blank=True)
        self.rows = {}

    def log(self, values, step=None, **kwargs):
        self.rows.setdefault(step, {}).update(values)


def test_both_curves_are_those_of_each_alone():
    found, ends = {}, []
    for evaluate in ("averaged", "live", "both"):
        tracker = Tracker()
        options = {**CURVES, "evaluate": evaluate, "log_with": tracker}
        run = prepared(method="ema", make=Averaging, **options)
        accelerator, model, *_, averaging = run
        accelerator.init_trackers("run")

        def measure(model=model):
            model.eval()
            with torch.no_grad():
                losses = [loss_of(model, batch).item() for batch in loader()]
            model.train()
            return {"val_loss": sum(losses) / len(losses)}

        returned = []
        for _ in range(EPOCHS):
            train(*run, epochs=1)
            returned.append(averaging.evaluate(measure))
        found[evaluate] = list(tracker.rows.values())
        assert all(
            row | values == row
            for row, values in zip(found[evaluate], returned, strict=True)
        )
        ends.append(averaging.averager.live_state_dict())
    assert_both_curves(found, "val_loss")
    assert list(tracker.rows) == [STEPS, 2 * STEPS, 3 * STEPS]
    assert tracker.rows[STEPS]["averaging/distance"] > 0
    assert_same(ends[0], ends[1])
    assert_same(ends[0], ends[2])


def test_the_best_average_is_shown_and_resumed(tmp_path):
    by = BestBy("score", higher_is_better=True, n=100)

    def go_on(run, first):
        for score in SCORES[first:]:
            train(*run, epochs=1)
            run[-1].evaluate(lambda score=score: {"score": score})
            run[0].save_state(tmp_path / f"{run[-1].averager.epochs}")
        with run[-1].averaged():
            shown = {k: v.clone() for k, v in run[1].state_dict().items()}
        assert run[-1].best.scores == list(SCORES)
        return shown, run[-1].averager.live_state_dict()

    whole = go_on(prepared(method="ema", make=Averaging, best=by), 0)
    assert_close(whole[0], plain("ema", epochs=2).averaged_state_dict())
    for epoch in (1, 2):
        again = prepared(method="ema", make=Averaging, best=by)
        again[0].load_state(tmp_path / f"{epoch}")
        resumed = go_on(again, epoch)
        assert_same(resumed[0], whole[0])
        assert_same(resumed[1], whole[1])


def test_an_evaluation_of_other_data_is_no_score():
    by = BestBy("score", higher_is_better=True, n=100)
    *_, averaging = prepared(method="ema", make=Averaging, best=by)
    averaging.evaluate(lambda: {"score": 0.5})
    assert averaging.evaluate(lambda: {"other": 0.1}) == {"other": 0.1}
    assert averaging.best.scores == [0.5]


def own_half(batch):
    """Two processes share a batch of 32, of which one process takes all."""
    return [part.chunk(2)[dist.get_rank()] for part in batch]


def on_two_processes(kind, folder):
    """Save a fresh and a trained state inside ``averaged()``, and go on from both."""
    accelerator = accelerator_of(kind)
    model = small_network()
    model, optimizer = accelerator.prepare(model, sgd(model))
    by = BestBy("score", higher_is_better=True, n=100)
    more = {"best": by, "evaluate": "both", "decays": [0.5], "log_averaging": True}
    averaging = Averaging(accelerator, model, optimizer, **more, **OPTIONS)
    averager, data = averaging.averager, [own_half(batch) for batch in loader(32)]

    def go_on(epochs):
        while averager.epochs < epochs:
            train(accelerator, model, optimizer, data, averaging, 1)
            # The score of rank 0 counts.
            score = [SCORES[averager.epochs - 1], 0.0][dist.get_rank()]
            averaging.evaluate(lambda score=score: {"score": score})

    for name, epochs in (("fresh", 0), ("trained", 1)):
        go_on(epochs)
        with averager.averaged():
            accelerator.save_state(f"{folder}/{name}")
        accelerator.wait_for_everyone()
    ends = []
    for name in ("trained", "fresh"):
        accelerator.load_state(f"{folder}/{name}")
        go_on(EPOCHS)
        averaged = averager.averaged_state_dict(full=kind != "ddp")
        live = averager.live_state_dict(full=kind != "ddp")
        best = averaging.best.averaged_state_dict(full=kind != "ddp")
        counts = averager.steps, averager.epochs, averager.switches
        assert averaging.best.scores == list(SCORES)
        ends.append((averaged, live, best, counts))
    return type(model).__name__, ends


def accelerator_of(kind):
    state = accelerate.PartialState(cpu=True)
    if kind != "ddp":
        # Accelerate looks at the plugin on a GPU only, and else makes it DDP. What
        # follows, from prepare() to load_state(), is its own and needs no GPU.
        state.distributed_type = accelerate.DistributedType.MULTI_GPU
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="NO_WRAP",
        state_dict_type="SHARDED_STATE_DICT" if kind == "ddp" else kind,
    )
    return accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)


@pytest.mark.parametrize(
    ("kind", "wrapper"),
    [
        ("ddp", "DistributedDataParallel"),
        ("SHARDED_STATE_DICT", "FSDPSequential"),
        ("FULL_STATE_DICT", "FSDPSequential"),
    ],
)
def test_two_processes_equal_one_and_resume(tmp_path, kind, wrapper):
    """Also FSDP2, where each process holds a part of the average and one writes it."""
    reference, second = (
        plain(batch=32, model=small_network(), make_optimizer=sgd, epochs=epochs)
        for epochs in (EPOCHS, 2)
    )
    for rank, (name, ends) in enumerate(run(2, on_two_processes, kind, str(tmp_path))):
        assert name == wrapper
        for averaged, live, best, counts in ends:
            assert counts == (reference.steps, EPOCHS, EPOCHS)
            if rank == 0 or kind == "ddp":  # rank 0 gathers what is sharded
                assert_close(averaged, reference.averaged_state_dict())
                assert_close(live, reference.live_state_dict())
                assert_close(best, second.averaged_state_dict())
