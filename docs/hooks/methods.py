"""Makes a page of the reference for each method that the package exports."""

import ast
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import switch_ema
from switch_ema._lazy import exported_names

SOURCES = Path(switch_ema.__file__).parents[1]
PLACES = {
    "methods": ("switch_ema", "switch_ema.averaging.methods"),
    "contrib": ("switch_ema.contrib", "switch_ema.averaging.contrib"),
}
"""For each mark, such as <!-- methods -->, the public path of the names and the package
that lists them; their pages are in the folder api/ with the name of the mark."""
SECTIONS = {"methods": "Methods", "contrib": "Experimental methods"}
"""Where the navigation has the pages."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of the methods to the navigation, below the reference."""
    assert config.nav is not None
    reference = next(part["Reference"] for part in config.nav if "Reference" in part)
    for mark, title in SECTIONS.items():
        pages = [path for path in method_pages() if path.startswith(f"api/{mark}/")]
        at = next(i for i, entry in enumerate(reference) if title in entry)
        reference[at] = {title: [reference[at][title], *pages]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make the pages."""
    for path, content in method_pages().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """List the methods where a mark is, each with a link to its page."""
    for mark in PLACES:
        markdown = markdown.replace(f"<!-- {mark} -->", _list_of(mark))
    return markdown


def method_pages() -> dict[str, str]:
    """Return the Markdown of each method's page by its path in the docs."""
    return {
        f"api/{mark}/{name}.md": f"# {name}\n\n::: {public}.{name}\n"
        for mark, (public, package) in PLACES.items()
        for name in exported_names(package)
    }


def _list_of(mark: str) -> str:
    names = exported_names(PLACES[mark][1])
    lines = (f"- [`{n}`]({mark}/{n}.md): {_summary(at)}" for n, at in names.items())
    return "\n".join(lines)


def _summary(place: str) -> str:
    """Return the first line of a docstring; ``place`` is ``package.module:Name``."""
    module, _, name = place.partition(":")
    path = SOURCES.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise LookupError(f"{path} has no class or function {name}.")
