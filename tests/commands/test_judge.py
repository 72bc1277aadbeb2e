"""`switch-ema judge` prints the tables of a comparison."""

from pathlib import Path

import pytest

from tests.bench.report.test_machine import parsed


@pytest.fixture
def logs(tmp_path):
    for method, gain in (("plain", 0.0), ("ema", 0.9)):
        for seed in range(3):
            path = tmp_path / method / f"seed-{seed}.csv"
            path.parent.mkdir(exist_ok=True)
            value = 2 + seed + gain * (1 + 0.0173 * seed**2)
            path.write_text(f"epoch,acc,loss\n0,1,3\n1,{value},{value}\n")


def test_it_prints_table_and_pairing(logs, call):
    code, out, _ = call("judge", "plain", "ema", "--metric", "acc")
    assert code == 0 and "ema helps: +0.93" in out
    assert "6 logs with 2 values of acc each (higher is better), paired by the" in out
    code, out, _ = call("judge", "plain", "ema", "--metric", "loss", "--verbose")
    assert code == 0 and "lower is better" in out and "ema hurts" in out


def test_evidence_ends_with_the_description_of_its_task(call):
    file = Path(__file__).parents[2] / "evidence/table-3/resnet18.jsonl"
    code, out, err = call("judge", str(file), "--baseline", "ema")
    assert (code, err) == (0, "")
    assert " ".join(out.split()).endswith("and procedures, small or full.")


def test_logs_of_different_lengths_are_named_and_end_with_an_error(
    logs, call, tmp_path
):
    with (tmp_path / "plain" / "seed-1.csv").open("a") as file:
        file.write("2,5,5\n")
    with (tmp_path / "ema" / "seed-1.csv").open("a") as file:
        file.write("2,5,5\n")
    code, out, err = call("judge", "plain", "ema", "--metric", "acc", "--format", "csv")
    assert code == 2 and out.startswith("task,")
    first = "seed-0.csv has 2 of 3 values of acc; excluded as unfinished. (3 more)"
    assert err.startswith("switch-ema: some logs were excluded: ") and first in err
    with (tmp_path / "plain" / "seed-1.csv").open("a") as file:
        file.write("3,5,5\n")
    code, out, err = call("judge", "plain", "ema", "--metric", "acc")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "compare trainings of the same length" in err


def test_formats_and_directions(logs, call):
    arguments = ("judge", "plain", "ema", "--metric", "acc", "--format", "csv")
    code, out, _ = call(*arguments, "--lower-is-better", "--title", "mine")
    assert code == 0 and out.splitlines()[2].startswith("mine,acc,,False,ema,")
    code, _, err = call(*arguments, "--lower-is-better", "--higher-is-better")
    assert code == 2 and "not both" in err


def test_bad_input_is_one_sentence(logs, call):
    code, out, err = call("judge", "plain", "ema")
    assert (code, out) == (2, "")
    assert (
        err
        == "switch-ema: choose a metric; columns common to all logs: acc and loss.\n"
    )


def test_json_is_valid_and_exit_codes_follow_the_verdicts(logs, call):
    arguments = ("judge", "plain", "ema", "--metric", "acc", "--format", "json")
    code, out, err = call(*arguments, "--fail-unless", "ema:helps")
    assert (code, err) == (0, "")
    methods = parsed(out)["tasks"][0]["metrics"][0]["methods"]
    assert [method["verdict"] for method in methods] == ["baseline", "helps"]
    code, out, err = call(*arguments, "--fail-unless", "hurts")
    assert (code, err) == (1, "switch-ema: not hurts: logs: ema helps.\n")
    assert parsed(out)["name"] == "logs"
    code, out, err = call(*arguments, "--fail-unless", "better")
    assert (code, out) == (2, "") and "--fail-unless must be helps, no-worse" in err
