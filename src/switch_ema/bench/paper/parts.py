"""The section of any table or figure of the paper, made from what is stored."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError
from switch_ema.bench.paper.ablation_section import ablation_section
from switch_ema.bench.paper.ablations import Ablation
from switch_ema.bench.paper.reproduce import (
    collect_rows,
    damaged_rows,
    table_folder,
)
from switch_ema.bench.paper.section import reproduction_section
from switch_ema.bench.paper.tables import PaperTable
from switch_ema.bench.report.sections import AnalysisSection

OnPart = Callable[[str], None]
"""Told what is measured or drawn next."""


def part_section(
    table: PaperTable, out: Path, scale: str, command: str
) -> AnalysisSection:
    """Make the section of a table or figure; pictures go to its folder.

    Args:
        table: the table or figure.
        out: the folder that has the folders of tables.
        scale: small or paper.
        command: what makes the section again.
    """
    folder = table_folder(out, table, scale)
    rows = collect_rows(table, out, scale)
    if isinstance(table, Ablation):
        with needed(None, extra="analysis", user="An ablation", error=UsageError):
            section = ablation_section(
                table, rows, scale=scale, command=command, folder=folder
            )
    else:
        section = reproduction_section(table, rows, scale=scale, command=command)
    problems = damaged_rows(table, out, scale)
    return replace(section, paragraphs=[*section.paragraphs, *problems])
