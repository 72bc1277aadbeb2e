"""The package from outside: its names and its import."""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

import switch_ema
from switch_ema import _deprecation, contrib


def test_every_public_name_exists_and_is_documented():
    for name in switch_ema.__all__:
        value = getattr(switch_ema, name)
        assert inspect.getdoc(value), name


def test_names_are_those_of_the_averaging_package():
    others = switch_ema._ELSEWHERE
    ours = [name for name in switch_ema.__all__ if name not in others]
    assert ours == switch_ema.averaging.__all__
    assert set(switch_ema.__all__) <= set(dir(switch_ema))
    assert switch_ema.EMA is switch_ema.averaging.EMA


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'SwitchEma'"):
        switch_ema.SwitchEma  # noqa: B018 - the lookup itself is tested


@pytest.mark.parametrize("package", ["switch_ema", "switch_ema.averaging"])
def test_experimental_names_moved_to_contrib(package, monkeypatch):
    monkeypatch.setattr(_deprecation, "_warned", set())
    old = importlib.import_module(package)
    assert not set(contrib.__all__) & set(old.__all__)
    for name in contrib.__all__:
        message = rf"^{package}.{name} .* removed in 0.4; use switch_ema.contrib.{name}"
        with pytest.warns(FutureWarning, match=message) as caught:
            found = getattr(old, name)
        assert found is getattr(contrib, name) and inspect.getdoc(found)
        assert len(caught) == 1 and caught[0].filename == __file__
        assert getattr(old, name) is found  # the second time without a warning
    with pytest.raises(AttributeError, match="no attribute 'Snooo'"):
        old.Snooo  # noqa: B018 - the lookup itself is tested


def test_names_of_experimental_methods_do_not_warn():
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "import switch_ema, torch\n"
        "switch_ema.create_averager('snoo', torch.nn.Linear(1, 1))\n"
        "assert switch_ema.contrib.Snoo is switch_ema.METHODS['snoo']\n"
        "assert len(switch_ema.METHODS) == 14\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_type_checkers_know_every_public_name(tmp_path):
    """Exports are derived when the package runs; a checker reads the source alone."""
    skipped = "[mypy]\nstrict = true\n[mypy-torch.*]\nfollow_imports = skip\n"
    (tmp_path / "mypy.ini").write_text(skipped)
    others = switch_ema._ELSEWHERE
    names = [f"switch_ema.{name}" for name in switch_ema.__all__ if name not in others]
    names += [f"switch_ema.averaging.{name}" for name in switch_ema.averaging.__all__]
    names += [f"switch_ema.contrib.{name}" for name in contrib.__all__]
    lines = "\n".join(f"reveal_type({name})" for name in names)
    (tmp_path / "use.py").write_text(f"import switch_ema.contrib\n{lines}\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", "cache", "use.py"]
    environment = os.environ | {"MYPYPATH": str(Path(switch_ema.__file__).parents[1])}
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout
    assert run.stdout.count("note: Revealed type is") == len(names)
    assert 'is "Any"' not in run.stdout, run.stdout


def new_modules(first: str, then: str) -> set[str]:
    """Return the names of the modules that ``then`` imports after ``first``."""
    code = (
        f"import sys, json; {first}; before = set(sys.modules); {then};"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def test_import_waits_for_the_first_name():
    new = new_modules("pass", "import switch_ema; dir(switch_ema)")
    assert "switch_ema" in new and not new & {"torch", "switch_ema.averaging"}


def test_names_bring_nothing_beyond_torch():
    """No trainer, no extra, no further part of torch: its cost is our own files'."""
    new = new_modules("import torch", "from switch_ema import SwitchEMA, trial")
    others = {name for name in new if not name.startswith("switch_ema")}
    assert "switch_ema.averaging" in new and others <= sys.stdlib_module_names


def test_the_changelog_has_a_section_for_this_version():
    changelog = Path(__file__).parent.parent / "CHANGELOG.md"
    assert f"\n## [{switch_ema.__version__}] - " in changelog.read_text()


def test_readme_on_the_package_index_links_to_the_repository():
    root = Path(__file__).parent.parent
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    home = settings["project"]["urls"]["Homepage"]
    text = (root / "README.md").read_text()
    for rule in settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets and all(target.startswith("https://") for target in targets)
    pages = [target for target in targets if target.startswith(f"{home}/blob/main/")]
    assert len(pages) > 10
    for page in pages:
        path = page.removeprefix(f"{home}/blob/main/").partition("#")[0]
        assert (root / path).exists(), page
    (picture,) = [target for target in targets if target.endswith("report.png")]
    assert picture.startswith("https://raw.githubusercontent.com/")
