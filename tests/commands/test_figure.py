"""`switch-ema figure`: figures of the paper from finished runs."""

import pytest

from switch_ema.analysis.gains import figure as gains_figure
from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.compare import summarize_run
from switch_ema.commands import figure
from switch_ema.paper import TABLES
from switch_ema.paper.show.figures import FIGURES, landscape, plane


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Few points are enough to see that something is drawn."""
    few = LandscapeSettings(points=3, side=4, batches=2)
    monkeypatch.setattr(landscape, "SETTINGS", few)
    monkeypatch.setattr(plane, "SETTINGS", few)


def test_the_list_names_every_figure(call):
    code, out, _ = call("figure")
    assert code == 0 and all(name in out for name in FIGURES)
    of_paper = [name for name, kind in FIGURES.items() if kind.number]
    assert [f"figure-{name}" in TABLES for name in of_paper] == [True] * 5


@pytest.mark.parametrize("name", ["convergence", "landscape", "gains"])
def test_a_run_is_drawn_with_a_panel_for_each_task(call, finished, name, tmp_path):
    code, out, err = call("figure", name, finished)
    assert err == "" and code == 0
    folder = tmp_path / "runs" / f"figure-{name}"
    for kind in ("png", "svg", "pdf"):
        assert (folder / "figures" / f"{name}.{kind}").stat().st_size > 5_000
    page = (folder / "report.html").read_text()
    assert "data:image/svg+xml" in page and f"switch-ema figure {name}" in page
    assert f"figure-{name}/report.html" in out.replace("\n", "")


def test_boundaries_are_measured_with_their_calibration(call, finished, tmp_path):
    code, out, err = call("boundary", "moons", "--seeds", 2, "--epochs", 2)
    (run,) = (tmp_path / "runs").glob("boundary-*")
    code, out, err = call("figure", "boundary", run, "--methods", "plain", "ema")
    assert err == "" and code == 0
    assert "calibration error" in out and "switch-ema" not in out
    assert (tmp_path / "runs/figure-boundary/figures/boundary-moons.pdf").is_file()


def test_without_runs_the_papers_own_are_trained(call, monkeypatch):
    asked = []
    monkeypatch.setattr(
        figure.Reproduce, "__call__", lambda self, console: asked.append(self.tables)
    )
    code, _, _ = call("figure", "plane")
    assert code == 0 and asked == [("figure-plane",)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("landscapes",), "unknown figure 'landscapes'; did you mean landscape?"),
        (("plane", "--methods", "ema"), "name the run folders"),
        (("convergence", "nowhere"), "does not exist"),
        (("gains",), "gains draws finished runs; name folders"),
    ],
)
def test_mistakes_are_one_sentence(call, arguments, message):
    code, _, err = call("figure", *arguments)
    assert code == 2 and message in err and err.count("\n") == 1


def test_methods_that_a_run_has_not_are_told(call, finished):
    code, _, err = call("figure", "convergence", finished, "--methods", "swa")
    assert code == 2 and "a run has no method swa; it has plain" in err


def test_trajectories_of_two_methods_are_drawn_side_by_side(call, finished, tmp_path):
    code, _, err = call("figure", "plane", finished)
    assert err == "" and code == 0
    pictures = (tmp_path / "runs/figure-plane/figures").glob("*.png")
    assert sorted(path.stem for path in pictures) == ["plane", "plane-2"]


def test_gains_are_the_intervals_of_the_report(call, finished, monkeypatch):
    drawn = []
    draw_gains = gains_figure.draw_gains
    monkeypatch.setattr(
        gains_figure, "draw_gains", lambda p: drawn.extend(p) or draw_gains(p)
    )
    code, _, _ = call("figure", "gains", finished, "--methods", "switch-ema")
    assert code == 0
    for panel, task in zip(drawn, summarize_run(finished).tasks, strict=True):
        (found,) = [
            one.difference
            for one in task.results[task.metrics[0].name]
            if one.method == "switch-ema"
        ]
        assert list(panel.gains) == ["switch-ema"]
        assert panel.gains["switch-ema"].mean == found.mean
    code, _, err = call("figure", "gains", finished, "--methods", "swa", "--force")
    assert code == 2 and "these methods have no paired seeds" in err


def test_a_figure_is_not_overwritten_unless_told(call, finished, tmp_path):
    picture = tmp_path / "runs/figure-gains/figures/gains.svg"
    assert call("figure", "gains", finished)[0] == 0
    picture.write_text("precious")
    code, _, err = call("figure", "gains", finished, "--methods", "switch-ema")
    assert code == 2 and picture.read_text() == "precious"
    assert err == (
        "switch-ema: runs/figure-gains has a figure already; --force replaces it, and "
        "another --out keeps both.\n"
    )
    assert call("figure", "gains", finished, "--out", "other")[0] == 0
    assert picture.read_text() == "precious"
    assert call("figure", "gains", finished, "--force")[0] == 0
    assert picture.read_text() != "precious"
