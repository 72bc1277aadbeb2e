"""`switch-ema reproduce --rehearse` as a user meets it."""

import json
import re
from dataclasses import replace

import pytest

from switch_ema.paper.reproduce import rehearse as rows
from switch_ema.paper.reproduce.rehearsals import Rehearsal, this_machine
from switch_ema.paper.show.rehearsal_table import BEGIN, END
from tests.paper.reproduce.test_rehearsals import MEASURED
from tests.test_cli import call

RUN = ("reproduce", "table-3", "--scale", "paper", "--rehearse")
TWO = ("--rows", "resnet18", "vgg13-bn")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder without data, where rehearsals are made up and one row fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("SWITCH_EMA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def rehearse_row(plan, options, run):
        found = Rehearsal(
            table=plan.table.name,
            row=plan.row.name,
            task=plan.config.tasks[0],
            data="generated",
            missing=("cifar100",),
            machine=this_machine(),
            when="2026-11-18",
            seconds=1.0,
            side=options.rehearse_side,
            measured=MEASURED,
        )
        if plan.row.name != "vgg13-bn":
            return found
        return replace(found, measured=None, error="no room.")

    monkeypatch.setattr(rows, "rehearse_row", rehearse_row)
    return tmp_path


def test_rows_are_rehearsed_shown_and_stored(folder, capsys, monkeypatch):
    code, out, err = call(capsys, *RUN, "--rows", "resnet18")
    assert code == 0 and err == ""
    assert "table-3 resnet18 rehearsed (1 s)" in out
    (line,) = [line for line in out.splitlines() if line.startswith("3 resnet18 ")]
    # data, batch, step, memory, rates of input and step, hours
    assert line.split()[2:] == ["no", "2/100", "0.50", "1.3", "1000", "4.00", "11k"]
    assert "`switch-ema data cifar100` says how to get them." in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    # The plan then has the hours.
    monkeypatch.setenv("COLUMNS", "200")
    plan = ("reproduce", "table-3", "--scale", "paper", "--rows", "resnet18")
    code, out, _ = call(capsys, *plan, "--dry-run")
    assert code == 0 and re.search(r"1[01],\d\d\d h on this CPU", out)


def test_a_failed_row_does_not_stop_the_others(folder, capsys):
    code, out, err = call(capsys, *RUN, *TWO)
    assert code != 0
    assert "table-3 vgg13-bn failed: no room." in out
    assert "table-3 resnet18 rehearsed" in out
    assert "1 of 2 rows failed (vgg13-bn); the reasons are above." in " ".join(
        err.split()
    )


def test_the_widest_rows_fit_a_terminal(folder, capsys, monkeypatch):
    """With a GPU, and with numbers of all sizes."""
    large = replace(
        MEASURED, batch=2048, step_seconds=0.031, device_mb=79_000.0, input_rate=4.9e7
    )
    monkeypatch.setattr("tests.commands.test_rehearse.MEASURED", large)
    every = ("reproduce", "all", "--scale", "paper", "--rehearse")
    rows = ("barlow-twins-cifar100", "imdb-wiki-convnext-t", "bert-wikitext")
    code, out, _ = call(capsys, *every, "--rows", *rows)
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    (line,) = [one for one in out.splitlines() if one.startswith("12 bert-wikitext ")]
    assert line.split()[2:7] == ["no", "2048/33k", "0.031", "1.3", "79.0"]
    assert line.split()[7:9] == ["49M", "66k"] and "…" not in out


def test_json(folder, capsys):
    code, out, _ = call(capsys, *RUN, *TWO, "--format", "json")
    assert code != 0
    failed, done = json.loads(out)
    assert failed["error"] == "no room." and failed["hours"] is None
    assert done["row"] == "resnet18" and done["hours"] > 1000
    assert done["measured"]["step_seconds"] == 0.5


def test_smaller_images_give_no_hours(folder, capsys):
    code, out, _ = call(capsys, *RUN, "--rows", "resnet18", "--rehearse-side", "16")
    (line,) = [line for line in out.splitlines() if line.startswith("3 resnet18 ")]
    assert code == 0 and line.split()[-1] == "-"
    assert "With smaller images no hours are estimated." in out


def test_a_dry_run_looks_for_the_data_without_rehearsing(folder, capsys):
    code, out, _ = call(capsys, *RUN, "--rows", "resnet18", "--dry-run")
    assert code == 0 and "cifar100" in out and "rehearsed" not in out
    assert not (folder / "runs").exists()


def test_the_table_of_a_page_is_replaced(folder, capsys):
    assert call(capsys, *RUN, "--rows", "resnet18")[0] == 0
    page = folder / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    code, _, err = call(capsys, *RUN, *TWO, "--write-docs", "page.md")
    assert code == 0 and err == ""
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "old" not in text
    (line,) = [line for line in text.splitlines() if "resnet18" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:3] == ["`3 resnet18`", "cifar100", "ResNet, 11,220,132"]
    # State, activations of 100 images, operations; 250 epochs of SWA at 30 TFLOP/s.
    assert cells[3:6] == ["100 images", "0.2 + 0.47", "3.3"]
    hours = 50_000 * 250 * 3.3e9 / (1218 * 24.5e9) / 3600
    assert cells[7].split(" / ")[0] == f"{hours:.2g}"
    (other,) = [line for line in text.splitlines() if "vgg13-bn" in line]
    assert "| no |" in other
    # Rows that are not stored here, or not asked for, keep their lines.
    elsewhere = "| `3 vgg13-bn` | cifar100 | VGG, 9,462,180 | elsewhere |"
    page.write_text(page.read_text().replace(other, elsewhere))
    for asked in (("vgg13-bn",), ("resnet18",), ("vgg13-bn", "swin-s")):
        code, _, _ = call(capsys, *RUN, "--rows", *asked, "--write-docs", "page.md")
        text = page.read_text()
        assert code == 0 and line in text and elsewhere in text
    (new,) = [one for one in text.splitlines() if "swin-s" in one]
    assert "| no |" in new and text.count("| row |") == 1
    page.write_text("without marks")
    code, _, err = call(capsys, *RUN, "--write-docs", "page.md")
    assert code != 0 and "must contain the lines" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "table-3", "--rehearse"), "--rehearse needs --scale paper."),
        (("reproduce", "--scale", "paper", "--rehearse"), "name tables to rehearse"),
        ((*RUN, "--max-steps", "0"), "max_steps must be at least 1, got 0."),
    ],
)
def test_wrong_flags(folder, capsys, arguments, message):
    code, _, err = call(capsys, *arguments)
    assert code != 0 and message in " ".join(err.split())
