"""Figure 2: the paper's networks, with validation losses and with training losses."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from switch_ema.bench.analyses.landscape import TEST_LOSS, TaskLandscape
from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.kept_weights import load_kept
from switch_ema.paper import TABLES
from switch_ema.paper.show.figures import landscape
from switch_ema.paper.show.figures.figure import DrawnRun

pytestmark = pytest.mark.zoo


def test_the_rows_are_the_papers_networks():
    rows = TABLES["figure-landscape"].rows
    assert [row.title.partition(" ")[0] for row in rows] == [
        *("WRN-28-8", "Swin-S", "ResNeXt-50", "ConvNeXt-S", "DeiT-S", "ConvNeXt-T")
    ]
    assert rows[0].paper.options["network"] == "wrn28-8"


def test_it_draws_the_loss_on_test_data_and_the_training_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(landscape, "SETTINGS", LandscapeSettings(points=3, batches=1))
    config = CompareConfig(
        tasks=("digits",), methods=("plain", "ema"), seeds=1, epochs=1
    )
    options = RunOptions(out=tmp_path, name="run", executor="inline", device="cpu")
    run_comparison(config, options)
    drawing = landscape.draw([DrawnRun("", tmp_path / "run")], (), tmp_path)
    assert [p.name for p in drawing.pictures] == ["landscape", "landscape-training"]
    assert "test data (left" in drawing.pictures[0].caption
    assert "training loss (left" in drawing.pictures[1].caption
    (kept,) = load_kept(tmp_path / "run", ("plain",), "cpu")
    settings = LandscapeSettings(points=3, batches=1)
    line = TaskLandscape(kept, settings).random_line(tested=True)
    kept.model.load_state_dict(dict(kept.weights["plain"]))
    with torch.no_grad():
        outputs, labels = kept.task.predictions(kept.model.eval())
    expected = cross_entropy(outputs, labels).item()
    assert line.values[TEST_LOSS][0][1] == pytest.approx(expected, rel=1e-5)
    assert line.values[TEST_LOSS][0][1] != pytest.approx(line.values["loss"][0][1])
