"""Post-hoc EMA: the averages, the snapshots, and resuming."""

import io
import math
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from switch_ema import StateMismatch, Steps
from switch_ema.averaging.methods.posthoc import PostHocEMA
from switch_ema.averaging.offline.profiles import power_profile
from switch_ema.averaging.offline.synthesis import synthesize
from switch_ema.averaging.schedules.windows import gamma_to_sigma_rel
from tests.averaging.helpers import (
    assert_same,
    batches,
    move,
    network,
    scalar_model,
    sgd,
    shadow,
    train_step,
)
from tests.averaging.methods.posthoc_helpers import (
    Posthoc,
    distance,
    steps_in,
    train,
    weighted,
)


@pytest.mark.parametrize(
    ("gamma", "lives", "averages"),
    [
        # gamma 0: beta = 0, 1/2, 2/3, the running mean
        # live:     6 -> 2 -> 1
        # average:  6 -> 4 -> 3
        (0, [6.0, 2.0, 1.0], [6.0, 4.0, 3.0]),
        # gamma 1: beta = 0, 1/4, 4/9
        # live:     8 -> 4 -> 14
        # average:  8 -> 8/4 + 4*3/4 = 5 -> 5*4/9 + 14*5/9 = 10
        (1, [8.0, 4.0, 14.0], [8.0, 5.0, 10.0]),
    ],
)
def test_first_three_steps_by_hand(tmp_path, gamma, lives, averages):
    model = scalar_model(100.0)  # the initial weight leaves no trace
    averager = Posthoc(model, folder=tmp_path, sigma_rel=[gamma_to_sigma_rel(gamma)])
    assert averager.current_decay == 0.0
    seen = []
    for step, live in enumerate(lives, start=1):
        move(model, live)
        averager.update()
        seen.append(shadow(averager))
        assert averager.current_decay == pytest.approx((1 - 1 / step) ** (gamma + 1))
    assert seen == pytest.approx(averages, rel=1e-12)


def test_averages_are_weighted_sums_of_all_past_weights(tmp_path):
    averager, lives = train(tmp_path, steps=20, model_dtype=torch.float64)
    state = averager.state_dict()
    for name, sigma_rel in (("shadow", 0.05), ("shadow_2", 0.10)):
        expected = weighted(lives, power_profile(sigma_rel))
        del expected["head.weight"]  # tied to body.weight, kept once
        assert distance(state[name], expected) < 1e-14
    expected = weighted(lives, power_profile(0.05))
    assert distance(averager.averaged_state_dict(), expected) < 1e-14


def test_flat_storage_gives_the_same_averages(tmp_path):
    plain, _ = train(tmp_path / "plain", steps=8)
    flat, _ = train(tmp_path / "flat", steps=8, flat=True)
    for name in ("shadow", "shadow_2"):
        for key, value in plain.state_dict()[name].items():
            torch.testing.assert_close(flat.state_dict()[name][key], value)


# Files.


def test_a_snapshot_is_one_file_per_average(tmp_path):
    folder = tmp_path / "made" / "when needed"
    averager, _ = train(folder, steps=4)
    assert not folder.exists()
    averager.detach()
    averager.update()
    names = [f"step000000005-sigma{s}.safetensors" for s in (0.05, 0.1)]
    assert sorted(path.name for path in folder.iterdir()) == names
    state = averager.state_dict()
    for name, shadow_name, sigma_rel in zip(
        names, ("shadow", "shadow_2"), ("0.05", "0.1"), strict=True
    ):
        with safe_open(folder / name, framework="pt") as file:
            metadata = file.metadata()
        assert metadata["format"] == "switch-ema posthoc 1"
        assert (metadata["step"], metadata["sigma_rel"]) == ("5", sigma_rel)
        tensors = load_file(folder / name)
        assert_same(
            dict(sorted(tensors.items())), dict(sorted(state[shadow_name].items()))
        )


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (1, [3, 6, 9, 12]),
        (2, [6, 12]),
        (0.5, [3, 5, 6, 8, 9, 11, 12]),
        (Steps(4), [4, 8, 12]),
    ],
)
def test_when_snapshots_are_written(tmp_path, every, expected):
    averager = PostHocEMA(network(), folder=tmp_path, every=every)
    for _ in range(4):
        for _ in range(3):
            averager.update()
        assert averager.end_epoch() is False
    assert steps_in(tmp_path) == expected


def test_a_snapshot_can_be_asked_for(tmp_path):
    model = scalar_model(1.0)
    averager = PostHocEMA(model, folder=tmp_path)
    with pytest.raises(RuntimeError, match="before the first step"):
        averager.snapshot()
    averager.end_epoch()  # due, but there is no average yet
    averager.update()
    average = averager.averaged_state_dict()
    with averager.averaged():
        averager.snapshot()  # the average is in the model's tensors in here
    averager.snapshot()  # again: it is the same one
    assert averager.state_dict()["snapshots"] == [1]
    assert_same(averager.synthesize(power_profile(0.05)), average)


def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch):
    averager, _ = train(tmp_path, steps=5)

    def fail(tensors, path, metadata):
        path.write_bytes(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        averager.snapshot()
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 2
    assert averager.synthesize(power_profile(0.05))  # the earlier files are whole


# Resuming.


def run(folder, data, checkpoint=None, every=5):
    """Train on the data, from a checkpoint or from the start; return a checkpoint."""
    model = network()
    optimizer = sgd(model)
    averager = PostHocEMA(model, optimizer, folder=folder, every=Steps(every))
    if checkpoint:
        states = torch.load(io.BytesIO(checkpoint), weights_only=True)
        for part, state in zip((model, optimizer, averager), states, strict=True):
            part.load_state_dict(state)
    for batch in data:
        train_step(model, optimizer, batch)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in (model, optimizer, averager)], file)
    return averager, file.getvalue()


def test_resuming_writes_the_same_files(tmp_path):
    data = list(batches(20))
    run(tmp_path / "whole", data)
    _, checkpoint = run(tmp_path / "parts", data[:8])
    run(tmp_path / "parts", data[8:], checkpoint)
    names = [path.name for path in sorted((tmp_path / "whole").iterdir())]
    assert [path.name for path in sorted((tmp_path / "parts").iterdir())] == names
    assert len(names) == 8
    for name in names:
        whole, parts = (tmp_path / part / name for part in ("whole", "parts"))
        assert_same(load_file(whole), load_file(parts))
        metadata = [safe_open(f, framework="pt").metadata() for f in (whole, parts)]
        assert metadata[0] == metadata[1]


def test_snapshots_of_a_future_that_was_given_up_are_not_mixed_in(tmp_path):
    data, profile = list(batches(20)), power_profile(0.08)
    expected, _ = run(tmp_path / "whole", data)
    folder = tmp_path / "resumed"
    past, checkpoint = run(folder, data[:8])
    at_checkpoint = past.synthesize(profile)
    # It goes on to step 18, also at steps that the resumed training does not visit.
    run(folder, batches(10, seed=99), checkpoint, every=3)
    resumed, _ = run(folder, [], checkpoint)
    assert_same(resumed.synthesize(profile), at_checkpoint)
    resumed, _ = run(folder, data[8:], checkpoint)
    assert steps_in(folder) == [5, 10, 15, 20]
    assert_same(synthesize(folder, profile), expected.synthesize(profile))
    assert len(list(folder.glob("*.stale"))) == 2 * len([9, 12, 15, 18])


def test_a_new_training_sets_the_files_of_an_old_one_aside(tmp_path):
    run(tmp_path, batches(10))
    averager, _ = run(tmp_path, batches(3, seed=9))
    assert steps_in(tmp_path) == [5, 10]
    with pytest.raises(FileNotFoundError, match="has no snapshot in"):
        averager.synthesize(power_profile(0.1))
    run(tmp_path, batches(6, seed=9))
    assert steps_in(tmp_path) == [5]
    assert len(list(tmp_path.glob("*.stale"))) == 4


def test_reset_forgets_the_snapshots(tmp_path):
    averager, _ = run(tmp_path, batches(10))
    averager.reset()
    assert averager.current_decay == 0.0
    with pytest.raises(FileNotFoundError, match="has no snapshot in"):
        averager.synthesize(power_profile(0.1))


def test_only_rank_0_writes(tmp_path):
    distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        averager, _ = train(tmp_path / "none", steps=5)
    finally:
        distributed.destroy_process_group()
    assert not (tmp_path / "none").exists()
    assert averager.state_dict()["snapshots"] == [5]


# Errors.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma_rel": (0.05, 0.3)}, r"sigma_rel must be in \(0, 0.288675\].*got 0.3"),
        ({"sigma_rel": (0.0,)}, r"sigma_rel must be in \(0, 0.288675\].*got 0.0"),
        ({"sigma_rel": (math.nan,)}, r"sigma_rel must be in .*got nan"),
        ({"sigma_rel": ()}, r"sigma_rel must be one or more numbers .*got \(\)"),
        ({"sigma_rel": 0.05}, r"sigma_rel must be one or more numbers .*got 0.05"),
        ({"sigma_rel": (0.05, 0.05)}, r"sigma_rel must be different numbers"),
        ({"every": 0}, r"every must be a number above 0, got 0"),
        ({"buffers": "none"}, r"buffers must be"),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        PostHocEMA(network(), folder=tmp_path, **options)


def test_the_state_of_other_widths_is_refused(tmp_path):
    averager, _ = train(tmp_path, steps=5)
    state = averager.state_dict()
    other = Posthoc(network(), folder=tmp_path, sigma_rel=(0.05, 0.2))
    with pytest.raises(
        StateMismatch, match=r"sigma_rel=\[0.05, 0.1\], not \[0.05, 0.2\]"
    ):
        other.load_state_dict(state)
    assert (other.steps, other.state_dict()["snapshots"]) == (0, [])


def test_dtypes_that_cannot_be_stored_are_refused_at_once(tmp_path):
    model = nn.Linear(2, 2)
    model.spectrum = nn.Parameter(torch.zeros(2, dtype=torch.complex128))
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ValueError, match=r"store spectrum: .* no torch.complex128"):
        Posthoc(model, optimizer, folder=tmp_path)
    assert not optimizer._optimizer_step_post_hooks
    Posthoc(model, folder=tmp_path, exclude="spectrum")


def test_without_safetensors(tmp_path, monkeypatch):
    train(tmp_path, steps=5)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    message = r'PostHocEMA needs safetensors: pip install "switch-ema\[files\]"\.$'
    with pytest.raises(ImportError, match=message):
        Posthoc(network(), folder=tmp_path)
    with pytest.raises(ImportError, match=message):
        synthesize(tmp_path, power_profile(0.05))
