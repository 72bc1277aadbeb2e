"""Checkpoints: damage is noticed, told and repaired; values are written once."""

import json
import math

import pytest
import torch

from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train import checkpoints
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from switch_ema.bench.train.values import ValueLog


class Stopped(BaseException):
    """The process ends here."""


@pytest.fixture
def cell(tiny):
    methods = ("plain", "ema")
    return make_plan(CompareConfig(tasks=(tiny,), methods=methods, seeds=1))[0]


def train(cell, folder, stop_after=None):
    def progress(epoch, latest):
        if epoch == stop_after:
            raise Stopped

    return train_cell(cell, RunContext(folder, "cpu"), progress)


def stopped(cell, folder):
    with pytest.raises(Stopped):
        train(cell, folder, stop_after=2)
    return checkpoints.checkpoint_path(folder, cell)


def zero_a_page(path):
    content = bytearray(path.read_bytes())
    content[100:600] = bytes(500)
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def of_another_training(path):
    state = checkpoints.read(path)
    state["averagers"] = {}
    checkpoints.save(path, state)


@pytest.mark.parametrize("damage", [zero_a_page, cut, of_another_training])
def test_a_damaged_checkpoint_is_told_and_the_training_begins_anew(
    cell, tmp_path, damage
):
    whole = train(cell, tmp_path / "whole")
    damage(stopped(cell, tmp_path))
    again = train(cell, tmp_path)
    assert again.message == "its checkpoint was damaged, so training started over"
    assert (again.status, again.values) == ("done", whole.values)


def test_damaged_values_are_noticed_too(cell, tmp_path):
    whole = train(cell, tmp_path / "whole")
    stopped(cell, tmp_path)
    path = checkpoints.values_path(tmp_path, cell)
    path.write_text(path.read_text().replace("0", "1", 1))
    again = train(cell, tmp_path)
    assert "training started over" in again.message and again.values == whole.values


def test_values_are_not_in_the_checkpoint(cell, tmp_path):
    path = stopped(cell, tmp_path)
    state = checkpoints.read(path)
    assert state["lines"] == 2 and "values" not in state["result"]
    assert train(cell, tmp_path).values == train(cell, tmp_path / "whole").values


def test_the_log_of_values(tmp_path):
    path = tmp_path / "values"
    log = ValueLog(path)
    values = {"plain": {"error": [[0.1, math.nan], [1 / 3, math.inf]]}}
    log.add(values)
    before = path.read_bytes()
    log.add(values)
    assert path.read_bytes() == before and log.lines == 2
    values["plain"]["error"].append([2.0, 3.0])
    log.add(values)
    assert path.read_bytes().startswith(before)
    read = ValueLog(path).read(2)  # of a checkpoint before the third
    assert json.dumps(read) == json.dumps(
        {"plain": {"error": [[0.1, math.nan], [1 / 3, math.inf]]}}
    )
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="has 3 of 5 epochs"):
        ValueLog(path).read(5)


def test_a_file_that_cannot_be_written_leaves_torchs_own_checksums_on(tmp_path):
    with pytest.raises(RuntimeError):
        checkpoints.save(tmp_path / "nowhere" / "cell.pt", {"epoch": 1})
    assert torch.serialization.get_crc32_options()
    checkpoints.save(tmp_path / "cell.pt", {"epoch": 1})
    assert torch.serialization.get_crc32_options()
    assert checkpoints.read(tmp_path / "cell.pt") == {"epoch": 1}
