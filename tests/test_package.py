"""The package from outside: its names and its import."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import switch_ema


def test_every_public_name_exists_and_is_documented():
    for name in switch_ema.__all__:
        value = getattr(switch_ema, name)
        assert inspect.getdoc(value), name


def test_import_brings_nothing_beyond_torch():
    """No trainer, no extra, no further part of torch: its cost is our own files'."""
    code = (
        "import sys, json, torch; before = set(sys.modules); import switch_ema;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    new = {name for name in json.loads(run.stdout) if not name.startswith("switch_ema")}
    assert new <= sys.stdlib_module_names


def test_the_changelog_has_a_section_for_this_version():
    changelog = Path(__file__).parent.parent / "CHANGELOG.md"
    assert f"\n## [{switch_ema.__version__}] - " in changelog.read_text()
