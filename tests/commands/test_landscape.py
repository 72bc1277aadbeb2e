"""`switch-ema landscape` on a finished comparison, and on what is not one."""

import io
import re
import shutil

import pytest
import torch
from PIL import Image
from rich.console import Console

from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.compare import summarize_run
from switch_ema.bench.report.page import write_run_page
from switch_ema.bench.train.checkpoints import read, save
from switch_ema.commands.landscape import Landscape
from tests.bench.conftest import TINY_TASK

QUICK = ("--points", 5, "--side", 4, "--batches", 2)
KINDS = ("line", "between", "plane", "sharpness", "reliability")


@pytest.fixture
def run(finished, tmp_path):
    """A copy, which a test may damage."""
    return shutil.copytree(finished, tmp_path / "copy")


def test_pictures_tables_and_a_section_of_the_report(run, call):
    code, out, _ = call("landscape", run, *QUICK, "--device", "cpu")
    assert code == 0
    for number in (1, 2):  # two tasks
        for kind in KINDS:
            png = run / "figures" / f"landscape-{number}-{kind}.png"
            assert png.with_suffix(".svg").read_text().count("<svg") == 1
            assert len(Image.open(png).convert("L").getcolors()) > 2  # not blank
    assert "Sharpness" in out and "Calibration" in out and "switch-ema" in out
    assert out.strip().endswith(f"Report: {run / 'report.html'}")
    page = (run / "report.html").read_text()
    assert "Landscape of digits:size=200" in page and "Landscape of moons" in page
    assert page.count("data:image/svg+xml;base64,") == 2 * len(KINDS)
    # Methods that the paper does not draw have to be asked for.
    assert (
        "lawa" not in page.rpartition(">Landscape of digits")[2].partition("Made by")[0]
    )


def test_each_part_is_named_and_counted_before_it_is_measured(run, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    settings = LandscapeSettings(points=3, side=4, batches=1)
    Landscape(run, methods=("plain", "switch-ema"), settings=settings)(console)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    for task in ("digits:size=200", "moons"):
        parts = re.findall(rf"{task}: ([^━]*?) *━[━╺╸ ]* (\d)/7", shown)
        assert list(dict.fromkeys(parts)) == [
            ("a random line", "0"),
            ("the line between two methods", "1"),
            ("the plane of the trajectories", "2"),
            ("sharpness of plain", "3"),
            ("sharpness of Switch EMA", "4"),
            ("calibration of plain", "5"),
            ("calibration of Switch EMA", "6"),
        ]


def test_the_report_can_be_written_again_with_its_sections(run, call):
    call("landscape", run, *QUICK, "--no-sharpness", "--methods", "plain", "lawa")
    (run / "report.html").unlink()
    page = write_run_page(summarize_run(run), run).read_text()
    assert "Landscape of moons" in page and "top eigenvalue" not in page


def test_weights_that_are_not_finite_are_gaps_that_the_caption_tells(run, call):
    for path in (run / "cells").glob("*.pt"):
        state = read(path)
        for tensors in (state["model"], *_shadows(state)):
            for tensor in tensors.values():
                if torch.is_tensor(tensor) and tensor.is_floating_point():
                    tensor.fill_(float("inf"))
        save(path, state)
    code, _, _ = call("landscape", run, *QUICK)
    page = (run / "report.html").read_text()
    assert code == 0 and "The weights of Switch EMA are not finite" in page
    assert "points are gaps, where the loss is not finite" in page


def test_a_run_that_diverged_has_no_plane(call, tmp_path):
    (tmp_path / "tiny.py").write_text(TINY_TASK)
    options = ("--seeds", 1, "--jobs", 1, "--device", "cpu", "--name", "run")
    task = "tiny.py:Tiny:diverge=True"
    call("compare", task, "--methods", "plain", "switch-ema", *options)
    code, _, err = call("landscape", "runs/run", *QUICK)
    assert code == 0, err
    page = (tmp_path / "runs" / "run" / "report.html").read_text()
    assert "The weights of plain are not finite" in page
    assert "was not kept" not in page


def test_a_loss_of_training_mode_alone_is_told_in_one_sentence(call, tmp_path):
    only = "    loss_in_training_only = True\n    recipe"
    (tmp_path / "tiny.py").write_text(TINY_TASK.replace("    recipe", only))
    options = ("--seeds", 1, "--jobs", 1, "--device", "cpu", "--name", "run")
    call("compare", "tiny.py:Tiny", "moons", "--methods", "plain", "ema", *options)
    code, out, err = call("landscape", "runs/run", *QUICK)
    assert code == 0, err
    assert "tiny.py:Tiny has a loss in training mode only" in out
    assert "Landscape of moons" in out
    call("compare", "tiny.py:Tiny", "--methods", "plain", "ema", *options[:-1], "one")
    code, out, err = call("landscape", "runs/one", *QUICK)
    assert code == 2 and "tiny.py:Tiny has a loss in training mode only" in err
    assert "Traceback" not in err


def _shadows(state):
    return [averager["shadow"] for averager in state["averagers"].values()]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--points", 1), "points must be at least 3, got 1"),
        (("--reach", 0), "reach must be above 0, got 0.0"),
        (("--methods", "swa"), "no method 'swa'; it has plain, ema:decay=0.9"),
    ],
)
def test_bad_input_is_one_sentence(finished, call, arguments, sentence):
    code, _, err = call("landscape", finished, *arguments)
    assert code == 2 and sentence in err and "Traceback" not in err


def test_a_run_without_checkpoints_says_why(run, call):
    for path in (run / "cells").glob("*.pt"):
        path.unlink()
    code, _, err = call("landscape", run)
    assert (
        code == 2 and "has no weights of seed 0" in err and "--keep-checkpoints" in err
    )
    code, _, err = call("landscape", run / "nowhere")
    assert code == 2 and "nowhere" in err


def test_an_error_leaves_no_trace_of_the_bar(call):
    code, out, err = call("landscape", "nowhere")
    assert code == 2 and out == "" and err.count("\n") == 1
