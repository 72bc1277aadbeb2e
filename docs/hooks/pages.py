"""Takes the examples and the guide for contributors into the site.

On GitHub the pages link to files beside docs/. Here each such file becomes a page of
the site, and links to it lead there. Any other link out of docs/ is left as it is, so
that the strict build fails on it.
"""

import ast
import posixpath
import re
from pathlib import Path

import tomllib
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")
PEER = re.compile(r"^```python peer$", re.MULTILINE)
"""Marks blocks for tests/test_docs.py; the highlighter does not know the word."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages made from other files to the end of the navigation."""
    examples = [f"examples/{path.stem}.md" for path in _examples(_root(config))]
    assert config.nav is not None
    config.nav += [{"Examples": examples}, {"Contributing": "contributing.md"}]
    config.nav.append({"Repository": _repository(_root(config))})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make a page of each example, and one of CONTRIBUTING.md."""
    root = _root(config)
    pages = {f"examples/{path.stem}.md": _code_page(path) for path in _examples(root)}
    guide = (root / "CONTRIBUTING.md").read_text()
    pages["contributing.md"] = guide.replace("](docs/", "](")  # it moves into docs/
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Lead links to files outside docs/ to the pages made from them."""
    root, here = _root(config), posixpath.dirname(page.file.src_uri)
    targets = {root / "README.md": "index.md"}
    targets[root / "CONTRIBUTING.md"] = "contributing.md"
    targets |= {path: f"examples/{path.stem}.md" for path in _examples(root)}

    def lead(match: re.Match[str]) -> str:
        path = (Path(config.docs_dir) / here / match[1]).resolve()
        if path not in targets:
            return match[0]
        return "](" + posixpath.relpath(targets[path], here or ".")

    return LINK.sub(lead, PEER.sub("```python", markdown))


def _repository(root: Path) -> str:
    """Return the address of the repository.

    As a link: the theme's own (repo_url) asks the host for stars on every page.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Homepage"])


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent.resolve()


def _examples(root: Path) -> list[Path]:
    return sorted((root / "examples").glob("*.py"))


def _code_page(path: Path) -> str:
    code = path.read_text()
    title = (ast.get_docstring(ast.parse(code)) or path.name).splitlines()[0]
    heading = f"---\ntitle: {path.name}\n---\n\n# {path.name}\n\n{title}\n"
    return f'{heading}\n```python title="examples/{path.name}"\n{code}```\n'
