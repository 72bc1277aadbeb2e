"""Lists the methods in the reference, as the package exports them."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from switch_ema._lazy import exported_names

PLACES = {
    "<!-- methods -->": ("switch_ema", "switch_ema.averaging.methods"),
    "<!-- contrib -->": ("switch_ema.contrib", "switch_ema.averaging.contrib"),
}
"""For each mark the public path of the names, and the package that lists them."""


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Put the entries of all methods where the mark is."""
    return with_methods(markdown)


def with_methods(markdown: str) -> str:
    """Replace each mark in a page by one entry of the reference per name."""
    for mark, (public, package) in PLACES.items():
        entries = (f"::: {public}.{name}" for name in exported_names(package))
        markdown = markdown.replace(mark, "\n\n".join(entries))
    return markdown
