"""Writes what each command says about itself into the page on the command line."""

import contextlib
import io
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from switch_ema.cli import COMMANDS, main

MARK = "<!-- commands -->"


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Put the help texts of all commands where the mark is."""
    if MARK not in markdown:
        return markdown
    parts = [f"```text\n{_help()}```"]
    parts += [f"## {name}\n\n```text\n{_help(name)}```" for name in COMMANDS]
    return markdown.replace(MARK, "\n\n".join(parts))


def _help(*command: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())
