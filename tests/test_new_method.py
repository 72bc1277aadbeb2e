"""A method is its file and one row: everything that lists methods then has it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from switch_ema import METHODS
from switch_ema._methods import method_facts
from switch_ema.analysis.method_style import COLOURS

ROOT = Path(__file__).parents[1]
METHOD = '''
"""A method for one test."""

from switch_ema.averaging.methods.ema import EMA


class Halfway(EMA):
    """Average as EMA does, for one test only."""

    name = "halfway"
    display_name = "Half Way"
    colour = 8
'''
ROW = "from switch_ema.averaging.methods.halfway import Halfway\n"
LISTS = """
import json, sys
from methods import method_pages
import switch_ema
from switch_ema.bench.method_names import DESCRIPTIONS
assert "torch" not in sys.modules
pages = method_pages()
print(json.dumps([DESCRIPTIONS["halfway"], switch_ema.__all__, pages]))
assert switch_ema.Halfway is switch_ema.METHODS["halfway"]
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A copy of the package with one more method."""
    folder = tmp_path_factory.mktemp("src")
    ignored = shutil.ignore_patterns("__pycache__")
    copy = folder / "switch_ema"
    shutil.copytree(ROOT / "src" / "switch_ema", copy, ignore=ignored)
    methods = copy / "averaging" / "methods"
    (methods / "halfway.py").write_text(METHOD)
    rows = (methods / "__init__.py").read_text()
    rows = rows.replace("\nfrom ", f"\n{ROW}from ", 1)
    rows = rows.replace('    "EMA",\n', '    "EMA",\n    "Halfway",\n', 1)
    (methods / "__init__.py").write_text(rows)
    return folder


def run(package: Path, cwd: Path, *arguments: str) -> str:
    hooks = str(ROOT / "docs" / "hooks")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package), hooks])}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_method_is_listed_exported_and_in_the_reference(package, tmp_path):
    out = run(package, tmp_path, "-c", LISTS)
    description, public, pages = json.loads(out)
    assert description == "Average as EMA does, for one test only."
    assert public.index("Halfway") == public.index("EMA") + 1
    assert "\n::: switch_ema.Halfway\n" in pages["api/methods/Halfway.md"]
    listed = run(package, tmp_path, "-m", "switch_ema", "methods")
    assert "halfway" in listed and "for one test only" in listed


def test_a_new_method_is_compared_and_reported_with_its_name_and_colour(
    package, tmp_path
):
    options = ("--epochs", "1", "--seeds", "2", "--executor", "inline", "--device=cpu")
    compare = ("-m", "switch_ema", "compare", "moons", "--methods", "plain", "halfway")
    run(package, tmp_path, *compare, *options)
    (report,) = tmp_path.rglob("report.html")
    page = report.read_text(encoding="utf-8")
    assert re.search(r"--method-8\b[^<>]*>[^<>]*(<[^<>]*>)*[^<>]*Half Way", page)


def test_the_facts_read_from_the_source_are_those_of_the_classes():
    assert list(method_facts()) == list(METHODS)
    for name, facts in method_facts().items():
        method = METHODS[name]
        assert (method.name, method.display_name) == (name, facts.display_name)
        assert method.colour == facts.colour in range(COLOURS)
        assert (method.__doc__ or "").partition("\n")[0] == facts.description
        assert {"name", "display_name", "colour"} <= vars(method).keys()
