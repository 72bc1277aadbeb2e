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


DEMO = """
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


def test_the_demo_needs_the_extra_bench_alone(tmp_path):
    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    own = [text for text in extras["bench"] if not text.startswith("switch-ema")]
    installed = closure([*project["dependencies"], *own, *extras["files"]])
    named = {
        canonicalize_name(Requirement(text).name)
        for extra in extras.values()
        for text in extra
    }
    absent = {
        module
        for module, names in packages_distributions().items()
        if set(map(canonicalize_name, names)) & (named - installed - {"switch-ema"})
    }
    assert {"keras", "mypy", "ray"} <= absent and "torch" not in absent
    short = ["--epochs", "1", "--seeds", "2", "--executor", "inline", "--device", "cpu"]
    command = [sys.executable, "-c", DEMO, ",".join(sorted(absent))]
    command += ["compare", "noisy-digits", "digits", *short]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "report.html" in run.stdout
