"""The doctor names faults of averages, and finds nothing in healthy ones.

One library for each fault; ``python -m tests.doctor.faults`` runs all, with more seeds.
"""

import json

import pytest
import torch

from switch_ema.doctor.diagnosis import diagnose
from tests.doctor.averages import LIBRARIES, AveragedModel, Case, Loop
from tests.doctor.faults import (
    FAULTS,
    HEALTHY,
    RESULTS,
    examine,
    examine_healthy,
    figures,
    names_of,
)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.filterwarnings("ignore:decay=0")
def test_faults_are_named(name, tmp_path):
    fault = FAULTS[name]
    library = fault.libraries[list(FAULTS).index(name) % len(fault.libraries)]
    result = examine(name, library, 0, tmp_path)
    assert fault.expected in names_of(result)
    assert result.exit_code == 1


@pytest.mark.parametrize("name", [n for n in HEALTHY if "decay 0." not in n])
def test_healthy_averages_have_no_findings(name, tmp_path):
    assert examine_healthy(name, 1, tmp_path).findings == ()


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_decay_is_estimated(library, tmp_path):
    result = diagnose(Case(LIBRARIES[library], 1, tmp_path, 0.95).run(), steps=50)
    assert result.findings == ()
    for decay in result.decays:
        assert decay == pytest.approx(0.95, abs=0.03)


def test_an_average_may_begin_after_the_first_checkpoints(tmp_path):
    late = {"before_update": lambda case, step: step > 200}
    for library in (AveragedModel, Loop):
        folder = tmp_path / library.__name__
        folder.mkdir()
        paths = Case(library, 0, folder, 0.9, **late).run()
        assert diagnose(paths).findings == ()
        first = diagnose(paths[:2])
        assert names_of(first) == ["frozen"]


def test_the_evidence_has_every_fault_and_healthy_average():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {row["fault"] for row in results["faults"]} == FAULTS.keys()
    assert {row["healthy"] for row in results["healthy"]} == HEALTHY.keys()
    assert "named" in figures(results)


def test_a_single_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 2 checkpoints"):
        diagnose([tmp_path / "one.pt"])


def test_float64_weights_are_sampled_whole(tmp_path):
    """Blocks of a file share their memory, so a sample must copy them."""
    from safetensors.torch import save_file

    from switch_ema.doctor.reading import sample
    from switch_ema.doctor.recognise import inspect_checkpoint

    weight = torch.arange(100_000, dtype=torch.float64)
    save_file({"w": weight}, tmp_path / "model.safetensors")
    (part,) = inspect_checkpoint(tmp_path / "model.safetensors").parts
    assert torch.equal(sample(part.tensors["w"], 65_536), weight[:65_536])


def test_the_picture_shows_a_stalled_average():
    from tests.doctor.picture import draw, measure

    paths = measure(steps=300)
    moved = [abs(p[-1] - p[0]) for p in (paths.live, paths.float32, paths.bfloat16)]
    assert moved[0] > moved[1] > 0 == moved[2]
    titles = [axes.get_title() for axes in draw(paths).axes]
    assert titles == ["healthy: float32", "stalled: bfloat16"]
