"""Method and seed are read from the paths, or the user says so."""

from pathlib import Path

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.logs.naming import group_logs, pair_logs


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(*names):
        for name in names:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text("a\n1\n")
        return names

    return make


def seeds(groups):
    numbers, how = pair_logs(groups)
    return {m: [numbers[path] for path in own] for m, own in groups.items()}, how


@pytest.mark.parametrize(
    "names",
    [
        ("plain/seed-10.csv", "plain/seed-2.csv", "ema/seed-10.csv", "ema/seed-2.csv"),
        ("plain-10.csv", "plain-2.csv", "ema-10.csv", "ema-2.csv"),
        ("seed_2/plain.csv", "seed_10/plain.csv", "seed_2/ema.csv", "seed_10/ema.csv"),
        (
            *("plain-2/checkpoint-7/trainer_state.json", "ema-2/trainer_state.json"),
            *("plain-10/trainer_state.json", "ema-10/checkpoint-7/trainer_state.json"),
        ),
        (
            *("plain/version_2/metrics.csv", "plain/version_10/metrics.csv"),
            *("ema/version_2/metrics.csv", "ema/version_10/metrics.csv"),
        ),
    ],
)
def test_paths_name_method_and_seed(here, names):
    groups = group_logs(here(*names))
    assert seeds(groups)[0] == {"plain": [2, 10], "ema": [2, 10]}


def test_folders_and_patterns(here):
    here("a/version_0/m.csv", "a/version_1/m.csv", "a/version_2/m.csv")
    here("a/version_3/m.csv")
    groups = group_logs(["plain=a/version_[01]", "ema=a/version_[23]/m.csv"])
    found, how = seeds(groups)
    assert found == {"plain": [0, 1], "ema": [0, 1]} and how == "by their order"


def test_what_cannot_be_paired_is_refused(here):
    names = here("plain/x.csv", "ema/x.csv", "ema/y.csv")
    with pytest.raises(
        UsageError, match="the same number of logs, got 1 of plain, 2 of ema"
    ):
        pair_logs(group_logs(names))
    names = here("plain/seed1.csv", "plain/again/seed1.csv", "ema/seed1.csv")
    with pytest.raises(UsageError, match="plain has two logs with seed 1: plain/again"):
        pair_logs(group_logs(names))
    with pytest.raises(UsageError, match="no-such: no such log"):
        group_logs(["no-such"])


def test_characters_that_are_digits_and_no_numbers_are_sorted(here):
    assert list(group_logs(here("a1\u00b22.csv", "b1\u00b22.csv"))) == [
        "a1\u00b22",
        "b1\u00b22",
    ]
