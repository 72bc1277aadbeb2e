"""Published rows are trained again as they were trained before."""

import pytest

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.evidence import publish, read_evidence
from switch_ema.paper.reproduce.check import check_row, differences


@pytest.mark.parametrize(
    ("stack", "trained"),
    [
        pytest.param("auto", 4, id="one model for all seeds"),
        pytest.param("off", 1, id="one model per seed"),
    ],
)
def test_first_seeds_are_trained_in_their_stack(tmp_path, stack, trained):
    config = CompareConfig(
        tasks=("digits:size=64",),
        methods=("plain", "switch-ema"),
        seeds=4,
        epochs=1,
        stack=stack,
    )
    options = RunOptions(out=tmp_path / "runs", executor="inline", device="cpu")
    run = run_comparison(config, options).folder
    file = publish(run, tmp_path / "evidence/table-3/row.jsonl", "row")
    checked = check_row(read_evidence(file), options, seeds=1)
    seeds = {value.where.split("seed ")[1][0] for value in checked.values}
    assert len(seeds) == trained
    assert all(value.is_equal for value in checked.values)
    assert bool(checked.notes) == (trained > 1)
    if trained > 1:
        assert checked.notes[-1].startswith("Seeds 0 to 3 were published as one model")


def test_machines_that_differ_are_named():
    before = {"threads": "1", "environment.torch": "2.7", "environment.processor": "a"}
    now = {"threads": "2", "environment.torch": "2.15", "environment.processor": "a"}
    assert [*differences(before, now | {"environment.instructions": "AVX2"})] == [
        "Threads 1 published, 2 now: the last digits may differ.",
        "torch 2.7 published, 2.15 now: the last digits may differ.",
    ]
