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
        ("a.log", "x", "as a log; it must be CSV, JSON lines"),
        ("a.csv", "", "a.csv has no numbers: it is empty"),
        ("a.csv", "epoch, acc\n", r"no numbers: its columns are epoch, acc\."),
        ("a.csv", "epoch,acc\nfirst,good\n", r"its columns are epoch, acc\."),
        ("a.jsonl", "", "a.jsonl has no numbers: it is empty"),
        ("a.json", '{"acc": [], "loss": ["x"]}', r"its columns are acc, loss\."),
        ("a.json", '[{"acc": "x"}]', r"its columns are acc\."),
        ("a.csv", f"{'x' * 500}\n", r"its columns are x{39}…\.$"),
        ("a.csv", "\x1b[2J\x00\n", r"its columns are \\x1b\[2J\\x00\.$"),
        ("a.jsonl", '{"a": 1}\nx\n{"a": 2}\n', "line 2 is not JSON"),
        ("a.jsonl", "[1]\n", "line 1 must be a JSON object"),
        ("a.json", "3", "must be a list of JSON objects"),
        ("a.json", "{", "is not JSON"),
        (
            "a.csv",
            f"a\n1\n{'x' * 140_000}\n",
            r"a.csv, line 3 is not CSV: field larger",
        ),
        ("a.csv", f"{'x' * 140_000}\n1\n", "a.csv, line 1 is not CSV: field larger"),
        (
            "a.jsonl",
            f'{{"a": 1}}\n{{"b": 1{"0" * 400}}}',
            "line 2: 'b' is an integer too",
        ),
        ("a.json", f'[{{"a": 1{"0" * 400}}}]', "entry 1: 'a' is an integer too large"),
        (
            "a.json",
            f'{{"a": [1, 1{"0" * 400}]}}',
            "a.json: 'a' is an integer too large",
        ),
        (
            "a.jsonl",
            f'{{"a": {"9" * 5000}}}',
            "line 1 has a number with thousands of dig",
        ),
        ("a.jsonl", f'{{"a": {"[" * 100_000}', "a.jsonl, line 1 is nested too deeply"),
        ("a.jsonl", '{"a":' * 60 + "1" + "}" * 60, "line 1 is nested too deeply: more"),
        ("a.json", '{"a":' * 60 + "1" + "}" * 60, "entry 1 is nested too deeply: more"),
    ],
)
def test_what_is_no_log_is_one_sentence(tmp_path, name, text, sentence):
    with pytest.raises(UsageError, match=sentence):
        read_log(write(tmp_path / name, text))


def test_binary_files_are_one_sentence(tmp_path):
    for name in ("a.csv", "a.json", "a.jsonl", "events.out.tfevents.1"):
        path = tmp_path / name
        path.write_bytes(bytes(range(256)) * 4)
        with pytest.raises(
            UsageError, match=r"is not UTF-8 text|has no numbers"
        ) as told:
            read_log(path)
        assert name in str(told.value)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_lines_end_at_line_feeds_alone(tmp_path, separator):
    """Other separators may stand in a cell or a JSON string."""
    text = f"acc,note\r\n1,a{separator}b\n2,c\n"
    assert read_log(write(tmp_path / "a.csv", text))["acc"] == [1, 2]
    text = f'{{"acc": 1, "note": "a{separator}b"}}\n{{"acc": 2}}\n'
    if separator > "\x1f":  # JSON has no raw control characters
        assert read_log(write(tmp_path / "a.jsonl", text)) == {"acc": [1, 2]}


def output_of_transformers(folder, states):
    """Write what a Trainer leaves in its output folder, with states by folder."""
    for name in ("config", "generation_config", "tokenizer", "tokenizer_config"):
        write(folder / f"{name}.json", '{"vocab_size": 3}')
    for name in ("special_tokens_map", "vocab", "added_tokens", "all_results"):
        write(folder / f"{name}.json", '{"loss": 3}')
    write(folder / "model.safetensors.index.json", '{"metadata": {"total_size": 1}}')
    with SummaryWriter(folder / "runs" / "today") as writer:
        writer.add_scalar("eval/loss", 9.0, 1)
    for where, losses in states.items():
        history = [{"eval_loss": loss} for loss in losses]
        state = json.dumps({"log_history": history})
        write(folder / where / "trainer_state.json", state)
        write(folder / where / "config.json", "{}")


def test_the_state_is_the_log_of_a_transformers_output_folder(tmp_path):
    output_of_transformers(
        tmp_path / "a", {"": [3, 2, 1], "checkpoint-10": [3], "checkpoint-20": [3, 2]}
    )
    output_of_transformers(tmp_path / "b", {"checkpoint-9": [3], "checkpoint-10": [4]})
    write(tmp_path / "c" / "metrics.csv", "eval_loss\n1\n")
    output_of_transformers(tmp_path / "d", {})
    assert find_logs(tmp_path) == [
        tmp_path / "a" / "trainer_state.json",
        tmp_path / "b" / "checkpoint-10" / "trainer_state.json",
        tmp_path / "c" / "metrics.csv",
        tmp_path / "d" / "runs" / "today",
    ]
    assert find_logs(tmp_path / "b" / "checkpoint-9") == [
        tmp_path / "b" / "checkpoint-9" / "trainer_state.json"
    ]
