"""All rows at one glance, with results made up by hand."""

from dataclasses import replace
from functools import partial

import pytest

from switch_ema.paper.show.overview import (
    overview_counts,
    overview_findings,
    overview_rows,
    overview_sheet,
)
from switch_ema.paper.show.overview_figure import write_overview
from switch_ema.paper.tables.table import PaperTable
from tests.paper.show.made_up import found, paper_row

ROW = paper_row("row", "76.8 77.0 77.3")
TABLE = PaperTable(name="table-9", title="made up", rows=(ROW,), family="video")


class Stored:
    """Rows of a folder."""

    def __init__(self, *rows):
        self.rows = rows

    def of(self, table):
        return self.rows if table is TABLE else ()


def with_curves(curves):
    """Return the row with these values per epoch of a few seeds."""
    own = found(ROW, dict.fromkeys(ROW.methods, 90.0))
    return replace(own, task=replace(own.task, curves={"accuracy": curves}))


def curve(*values, noise=(-0.02, 0.0, 0.01, 0.02)):
    """Make up a curve around these means for each of four seeds."""
    return {
        seed: [value + size * (1 + epoch % 3) for epoch, value in enumerate(values)]
        for seed, size in enumerate(noise)
    }


wobbled = partial(curve, noise=(0.01, -0.01, 0.02, 0.0))
"""The same with noise that differs from the other method's."""


COLUMNS = ["row", "n", "f", "averaging", "course", "ema", "best", "control", "paper"]


def cells(*rows):
    sheet = overview_sheet([*overview_rows([TABLE], Stored(*rows))])
    return [dict(zip(COLUMNS, row, strict=True)) for row in sheet.rows]


def test_gain_that_stopping_in_time_also_gives():
    # EMA falls from 95 to 90, Switch EMA stays at 94.
    over_trained = with_curves(
        {
            "plain": wobbled(80, 94, 94, 90, 88, 87, 87, 87),
            "ema": curve(80, 95, 95, 92, 91, 90, 90, 90),
            "switch-ema": wobbled(80, 90, 94, 94, 94, 94, 94, 94),
        }
    )
    (row,) = cells(over_trained)
    assert row["row"] == "ROW (table 9), accuracy"
    assert (row["n"], row["course"]) == ("4", "over-trains")
    assert row["averaging"].startswith("+2.99") and row["averaging"].endswith("helps")
    assert row["ema"].startswith("+4.0") and row["ema"].endswith("], helps")
    assert row["best"].startswith("-1.0")
    assert row["control"] == row["f"] == "-", "there is no control"
    assert row["paper"] == "+0.3", "77.3 - 77.0 in the paper"
    rows = [*overview_rows([TABLE], Stored(over_trained))]
    assert overview_counts(rows, "ema").startswith("helps in 1, hurts in 0")
    assert overview_counts(rows, "best").startswith("helps in 0, hurts in 1")
    assert overview_counts(rows, "ema@lr*f").endswith("of 0 rows")
    assert overview_counts(rows, "ema", "over-trains").startswith("helps in 1")
    assert overview_counts(rows, "ema", "flat").endswith("of 0 rows")
    assert overview_counts(rows, "averaging").startswith("helps in 1")
    told = overview_findings(rows).splitlines()
    assert told[0].startswith("- EMA over plain training: helps in 1")
    assert "over-trains" in told[2] and not any("flat" in line for line in told[:-1])


@pytest.mark.parametrize(
    ("values", "course"),
    [
        ((80, 84, 86, 88, 89, 90, 91, 92), "still improving"),
        ((80, 90, 90, 90, 90, 90, 90, 90), "flat"),
    ],
)
def test_course_is_that_of_ema(values, course):
    row = with_curves({"ema": curve(*values), "switch-ema": wobbled(*values[::-1])})
    assert cells(row)[0]["course"] == course


def test_control_has_a_difference_of_its_own():
    values = (80, 90, 90, 90, 90, 90, 90, 90)
    row = with_curves(
        {
            "ema:decay=0.9": curve(*values),
            "switch-ema:decay=0.9": wobbled(*(v - 2 for v in values)),
            "ema@lr*f:decay=0.9": curve(*(v - 3 for v in values)),
        }
    )
    (shown,) = cells(row)
    assert shown["ema"].startswith("-1.99 [") and shown["ema"].endswith("], hurts")
    assert shown["control"].startswith("+1.01 [") and shown["control"].endswith(
        "], helps"
    )


def test_rows_without_switch_ema_are_left_out(tmp_path):
    row = with_curves({"ema": curve(1, 2), "plain": wobbled(1, 2)})
    assert [*overview_rows([TABLE], Stored(row))] == []


def test_figure_shows_every_row(tmp_path):
    values = (80, 90, 90, 90)
    row = with_curves({"ema": curve(*values), "switch-ema": wobbled(*values)})
    rows = [*overview_rows([TABLE], Stored(row))]
    write_overview(rows, tmp_path / "rows.svg")
    assert b"ROW (table 9)" in (tmp_path / "rows.svg").read_bytes()
