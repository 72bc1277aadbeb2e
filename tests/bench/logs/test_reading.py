"""Logs as trainers write them are read as they are."""

import json

import pytest
from torch.utils.tensorboard import SummaryWriter

from switch_ema.bench.errors import UsageError
from switch_ema.bench.logs.reading import find_logs, read_log


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_lightnings_csv_has_empty_cells(tmp_path):
    text = "epoch,step,train_loss,val_loss\n0,9,1.5,\n0,9,,1.25\n1,19,,nan\n"
    series = read_log(write(tmp_path / "metrics.csv", text))
    assert series["train_loss"] == [1.5]
    assert series["val_loss"][0] == 1.25 and len(series["val_loss"]) == 2


def test_transformers_state(tmp_path):
    history = [{"loss": 1.0, "step": 5}, {"eval_loss": 0.5}, {"eval_loss": 0.25}]
    state = {
        "best_metric": None,
        "log_history": history,
        "is_hyper_param_search": False,
    }
    path = write(tmp_path / "trainer_state.json", json.dumps(state))
    assert read_log(path)["eval_loss"] == [0.5, 0.25]


def test_json_lines_are_flattened_and_may_end_in_the_middle(tmp_path):
    text = '{"val": {"acc": 1}, "note": "a", "ok": true}\n{"val": {"acc": 2}}\n{"va'
    for name in ("log.jsonl", "scalars.json"):
        assert read_log(write(tmp_path / name, text)) == {"val/acc": [1.0, 2.0]}


def test_lists_by_name_are_a_history(tmp_path):
    path = write(tmp_path / "h.json", '{"val_loss": [2, 1.5], "params": {"epochs": 2}}')
    assert read_log(path) == {"val_loss": [2, 1.5]}


def test_event_files_of_one_folder_are_one_training(tmp_path):
    for first in (0, 2):
        with SummaryWriter(tmp_path / "run", filename_suffix=str(first)) as writer:
            for step in (first, first + 1):
                writer.add_scalar("val/acc", 0.5 * step, step)
    write(tmp_path / "other.csv", "a\n1\n")
    assert find_logs(tmp_path) == [tmp_path / "other.csv", tmp_path / "run"]
    assert read_log(tmp_path / "run") == {"val/acc": [0.0, 0.5, 1.0, 1.5]}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.log", "x", "is no log that can be read: it must be CSV, JSON lines"),
        ("a.jsonl", '{"a": 1}\nx\n{"a": 2}\n', "line 2 is not JSON"),
        ("a.jsonl", "[1]\n", "line 1 must be a JSON object"),
        ("a.json", "3", "must be a list of JSON objects"),
        ("a.json", "{", "is not JSON"),
    ],
)
def test_what_is_no_log_is_one_sentence(tmp_path, name, text, sentence):
    with pytest.raises(UsageError, match=sentence):
        read_log(write(tmp_path / name, text))
