"""Tables of the results, for the terminal and Markdown, made from the JSON alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

Results = dict[str, Any]

_TITLES = {
    "update": "update: average all weights once",
    "switch": "switch: copy the average into the live weights",
    "averaged": "averaged: swap the average into the model and out again",
}
_UNIT = "multiples of one flat lerp_ over the same elements; median time in brackets"


@dataclass(frozen=True)
class Sheet:
    """One table: a row per contestant, a column per model."""

    title: str
    caption: str
    columns: list[str]
    rows: list[list[str]]


def sheets(results: Results) -> Iterator[Sheet]:
    """Lay the results out."""
    columns = ["", *results["models"]]
    for operation, title in _TITLES.items():
        rows = [
            [_label(results, name), *cells]
            for name in _names(results)
            if (cells := _timings(results, operation, name)) is not None
        ]
        yield Sheet(title, _UNIT, columns, rows)
    rows = [
        [name, *cells]
        for name in _names(results)
        if (cells := _memories(results, name)) is not None
    ]
    caption = (
        "multiples of the model's bytes, besides the model: peak during construction "
        "and update / kept / additional peak while the average is in the model"
    )
    yield Sheet("memory", caption, columns, rows)


def show(results: Results, console: Console) -> None:
    """Print tables for the terminal."""
    for sheet in sheets(results):
        table = Table(title=sheet.title, caption=sheet.caption, title_justify="left")
        for index, column in enumerate(sheet.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in sheet.rows:
            ours = row[0].startswith("SwitchEMA")
            table.add_row(*row, style="bold" if ours else None)
        console.print(table)
    console.print(conditions(results))


def markdown(results: Results) -> str:
    """Return the same as Markdown."""
    blocks = []
    for sheet in sheets(results):
        rule = ["---", *["---:"] * (len(sheet.columns) - 1)]
        lines = [sheet.columns, rule, *sheet.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        blocks.append(f"**{sheet.title}**, in {sheet.caption}:\n\n{table}")
    return "\n\n".join([*blocks, conditions(results)])


def _names(results: Results) -> list[str]:
    """List everything that was timed, and what failed."""
    names: dict[str, None] = {}
    for model in results["models"].values():
        for timings in model["operations"].values():
            names |= dict.fromkeys(timings)
    order = list(results["contestants"])
    known = [name for name in order if name in names]
    missing = [name for name in order if results["contestants"][name]["missing"]]
    limits = [name for name in names if name not in results["contestants"]]
    return [*known[:1], *limits, *known[1:], *missing]


def _label(results: Results, name: str) -> str:
    contestant = results["contestants"].get(name)
    if contestant is None or contestant["averages_buffers"]:
        return name
    return f"{name} (no buffers)"


def _timings(results: Results, operation: str, name: str) -> list[str] | None:
    """Return a row's cells; None if the row is the limit of another operation."""
    if results["contestants"].get(name, {}).get("missing"):
        return ["not installed"] * len(results["models"])
    cells = []
    for model in results["models"].values():
        timing = model["operations"].get(operation, {}).get(name)
        cells.append(f"{timing['ratio']:.2f} ({_ms(timing['ms'])})" if timing else "-")
    is_limit = name not in results["contestants"]
    return None if is_limit and set(cells) == {"-"} else cells


def _memories(results: Results, name: str) -> list[str] | None:
    cells = []
    for model in results["models"].values():
        memory = model["memory"].get(name)
        if memory is None:
            return None
        shown = "-" if memory["averaged"] is None else f"{memory['averaged']:.2f}"
        cells.append(f"{memory['peak']:.2f} / {memory['held']:.2f} / {shown}")
    return cells


def _ms(ms: float) -> str:
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"


def conditions(results: Results) -> str:
    machine = results["machine"]
    loads = [
        load
        for model in results["models"].values()
        for load in model["busy_cores_of_others"].values()
    ]
    low, high = f"{min(loads):.1f}", f"{max(loads):.1f}"
    idle = "machine otherwise idle"
    others = idle if high == "0.0" else f"{low} to {high} of them busy with other work"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {others}; "
        f"torch {machine['torch']} with "
        f"{machine['threads']} threads; medians over the quieter half of "
        f"{results['repeats']} interleaved repeats; {results['date'][:10]}."
    )
