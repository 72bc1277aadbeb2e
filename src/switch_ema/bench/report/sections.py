"""Analysis sections, stored with a run's results and shown on its page.

A section is text, tables and pictures. Analysis commands write it as JSON and the
pictures as files for papers; pages written later include both.
"""

import base64
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from switch_ema._files import read_inside, write_atomically

SECTIONS, FIGURES = "sections", "figures"
"""Folders below that of a run."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure, as PNG, SVG and PDF in the folder of figures."""

    name: str
    """File name without extension."""
    caption: str
    alternative: str
    """Alternative text for screen readers."""
    source: str = ""
    """The SVG as a data URL; filled in by :func:`load_sections`."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table; all columns but the first hold numbers."""

    caption: str
    header: list[str]
    rows: list[list[str]]
    is_folded: bool = False
    """Whether a page shows it collapsed."""


@dataclass(frozen=True, kw_only=True)
class AnalysisSection:
    """One analysis: text, tables and pictures."""

    key: str
    """File name; a later section with the same key replaces this one."""
    title: str
    command: str
    """The command that reproduces it."""
    paragraphs: list[str] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


def save_section(section: AnalysisSection, folder: Path) -> Path:
    """Write a section to the folder of a run; its pictures must already be there."""
    path = folder / SECTIONS / f"{section.key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, json.dumps(asdict(section), indent=1))


def load_sections(folder: Path) -> list[AnalysisSection]:
    """Read the sections of a run, without deleted pictures.

    Links are skipped, too: a page must not show files from outside its run.
    """
    paths = sorted((folder / SECTIONS).glob("*.json"))
    return [_load_or_explain(path, folder) for path in paths]


def _load_or_explain(path: Path, folder: Path) -> AnalysisSection:
    """Read a section; a damaged one is replaced by a note."""
    try:
        return _load(json.loads(read_inside(folder, SECTIONS, path.name)), folder)
    except (AttributeError, KeyError, OSError, TypeError, ValueError, RecursionError):
        return AnalysisSection(
            key=path.stem,
            title=f"{path.stem}: this analysis cannot be read",
            command="",
            paragraphs=[f"{path} is damaged; repeat the analysis or delete the file."],
        )


def _load(stored: dict[str, Any], folder: Path) -> AnalysisSection:
    pictures = [
        Picture(**{**picture, "source": address})
        for picture in stored["pictures"]
        if (address := _data_address(folder, picture["name"]))
    ]
    sheets = [Sheet(**sheet) for sheet in stored["sheets"]]
    section = AnalysisSection(**{**stored, "pictures": pictures, "sheets": sheets})
    texts = [section.key, section.title, section.command, *section.paragraphs]
    for sheet in sheets:
        texts += [sheet.caption, *sheet.header, *(c for row in sheet.rows for c in row)]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a section consists of strings")
    return section


def _data_address(folder: Path, name: str) -> str:
    """Return a picture as a data URL; empty if it is not in the folder of figures."""
    try:
        content = read_inside(folder, FIGURES, f"{name}.svg")
    except OSError:
        return ""
    return "data:image/svg+xml;base64," + base64.b64encode(content).decode()
