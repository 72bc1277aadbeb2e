"""A missing library is named in one sentence, with what to install."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = [
    "accelerate",
    "ignite",
    "keras",
    "lightning",
    "mmengine",
    "timm",
    "transformers",
]
CODE = """
import sys
for extra in sys.argv[1:]:
    sys.modules[extra] = None  # as if it were not installed
for extra in sys.argv[1:]:
    try:
        __import__(f"switch_ema.integrations.{extra}")
    except ModuleNotFoundError as error:
        print(error)
import switch_ema.integrations
"""


def test_each_integration_says_which_extra_to_install():
    command = [sys.executable, "-c", CODE, *EXTRAS]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    sentence = 'This needs {0}: pip install "switch-ema[{0}]".'
    assert run.stdout.splitlines() == [sentence.format(extra) for extra in EXTRAS]


def test_what_a_library_itself_lacks_is_reported_as_it_is():
    from switch_ema._extras import needed

    with (
        pytest.raises(ModuleNotFoundError, match="no_such_dependency"),
        needed("library", extra="library"),
    ):
        raise ModuleNotFoundError("No no_such_dependency", name="no_such_dependency")


def closure(wanted: list[str]) -> set[str]:
    """Return the distributions that pip would install for these requirements."""
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in wanted]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for own in ("", *requirement.extras):
            if f"{name}[{own}]" in found:
                continue
            found |= {name, f"{name}[{own}]"}
            try:
                needs = requires(name) or []
            except PackageNotFoundError:  # for another platform
                continue
            waiting += [(Requirement(text), own) for text in needs]
    return found


PROJECT = tomllib.loads(
    (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
EXTRA = PROJECT["optional-dependencies"]


def wanted(extra: str) -> list[str]:
    """Return the requirements of an extra, with those of extras that it includes."""
    found = []
    for text in EXTRA[extra]:
        requirement = Requirement(text)
        if requirement.name == "switch-ema":
            found += [other for own in requirement.extras for other in wanted(own)]
        else:
            found.append(text)
    return found


def absent(*extras: str) -> set[str]:
    """Return the modules of other extras that are missing with these alone."""
    own = [text for extra in extras for text in wanted(extra)]
    installed = closure([*PROJECT["dependencies"], *own])
    named = {
        canonicalize_name(Requirement(text).name)
        for extra in EXTRA.values()
        for text in extra
    }
    return {
        module
        for module, names in packages_distributions().items()
        if set(map(canonicalize_name, names)) & (named - installed - {"switch-ema"})
    }


WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in ABSENT:
            return super().find_spec(name, path, target)

ABSENT = set(sys.argv.pop(1).split(","))
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from switch_ema.cli import main
main(sys.argv[1:])
"""
SHORT = ("--epochs", "1", "--seeds", "2", "--executor", "inline", "--device", "cpu")


def run_with(extras, folder, *arguments):
    """Run a command where only these extras are installed."""
    hidden = absent(*extras)
    assert {"keras", "mypy", "ray"} <= hidden and "torch" not in hidden
    command = [sys.executable, "-c", WITHOUT, ",".join(sorted(hidden)), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_demo_needs_the_extra_bench_alone(tmp_path):
    run = run_with(["bench"], tmp_path, "compare", "noisy-digits", "digits", *SHORT)
    assert run.returncode == 0, run.stderr
    assert "report.html" in run.stdout
