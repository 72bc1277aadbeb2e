"""The documentation site, built as ``make docs`` does."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import griffe
import pytest

import switch_ema

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "hooks"))
try:
    from methods import method_pages
finally:
    sys.path.pop(0)
SOURCES = ("docs", "examples", "src", "mkdocs.yml", "pyproject.toml")
SOURCES += ("CONTRIBUTING.md", "README.md")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_is_in_the_reference(site):
    pages = "".join(page.read_text() for page in (site / "api").rglob("*.html"))
    names = [*switch_ema.__all__, *(f"contrib.{n}" for n in switch_ema.contrib.__all__)]
    missing = [name for name in names if f'id="switch_ema.{name}"' not in pages]
    assert not missing


def test_every_option_is_described_in_the_reference():
    """Parameters of functions and constructors; of methods those with a default."""
    package = griffe.load(
        "switch_ema", search_paths=[ROOT / "src"], resolve_aliases=True
    )
    pages = [page.read_text() for page in (ROOT / "docs" / "api").glob("*.md")]
    text = "".join([*pages, *method_pages().values()])
    missing = []
    for name in re.findall(r"^::: switch_ema\.(\S+)", text, re.MULTILINE):
        found = package[name]
        callables = {name: found} if found.is_function or found.is_class else {}
        if found.is_class:
            own = found.members.items()
            callables |= {f"{name}.{k}": m for k, m in own if m.is_function}
        for key, one in callables.items():
            is_method = found.is_class and one is not found
            if is_method and key.rpartition(".")[2].startswith("_"):
                continue
            known = _described(one)
            missing += [
                f"{key}({parameter.name})"
                for parameter in one.parameters or ()
                if parameter.name not in {"self", "cls", *known}
                and not (is_method and parameter.required)
            ]
    assert not missing


def _described(found: griffe.Object) -> set[str]:
    """Name what the docstring lists, and the fields of a class with their own."""
    fields = found.all_members if found.is_class else {}
    known = {name for name, member in fields.items() if member.docstring}
    for one in (found, fields.get("__init__")):
        parts = one.docstring.parse("google") if one and one.docstring else []
        for part in parts:
            if part.kind.value in ("parameters", "attributes"):
                known |= {item.name.lstrip("*") for item in part.value}
    return known


def test_every_method_has_a_page_and_a_line_in_the_list(site):
    listed = (site / "api" / "methods.html").read_text()
    assert 'href="methods/EMA.html"' in listed
    assert "Average exponentially" in listed
    assert 'id="switch_ema.EMA"' in (site / "api" / "methods" / "EMA.html").read_text()
    assert (site / "api" / "contrib" / "SWAG.html").is_file()


def test_links_to_files_beside_the_docs_lead_to_pages_of_the_site(site):
    page = (site / "integrations" / "pytorch.html").read_text()
    assert 'href="../examples/with_pytorch.html"' in page
    example = (site / "examples" / "with_pytorch.html").read_text()
    assert "optimizer" in example
    assert 'href="contributing.html"' in (site / "index.html").read_text()


def test_formulas_are_drawn_and_roles_and_doctests_are_translated(site):
    theory = (site / "theory.html").read_text()
    assert 'class="formula"' in theory
    assert "arithmatex" not in theory
    reference = "".join(page.read_text() for page in (site / "api").rglob("*.html"))
    assert not re.search(r":(class|func|meth):", reference)
    assert "<blockquote>" not in reference


def test_pages_show_no_comments(site):
    for page in site.rglob("*.html"):
        text = re.sub("<code.*?</code>", "", page.read_text(), flags=re.DOTALL)
        assert "&lt;!--" not in text, page.name


def test_pages_load_nothing_from_elsewhere(site):
    for page in site.glob("**/*.html"):
        loaded = re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="(http[^"]+)', page.read_text()
        )
        assert not loaded, page.name


def test_a_broken_link_fails_the_build(tmp_path):
    """One of each kind, and a page that the navigation does not have."""
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs" / "lost.md").write_text(
        "# Lost\n\n[a](nowhere.md) [b](choosing.md#nothing) [c](../examples/none.py)\n"
    )
    # The reference takes the longest to build and adds nothing to this.
    for page in (tmp_path / "docs" / "api").glob("*.md"):
        page.write_text("# Empty\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for part in ("nowhere.md", "#nothing", "../examples/none.py", 'in the "nav"'):
        assert part in done.stderr, done.stderr
