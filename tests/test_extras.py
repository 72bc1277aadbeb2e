"""A missing library is named in one sentence, with what to install."""

import os
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from switch_ema.zoo.tasks.registry import PACKAGES, TASKS, extra_of

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


@cache
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


HIDE = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in ABSENT:
            return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
SCRIPT = """
import sys
import torch
import switch_ema

torch.manual_seed(int(sys.argv[1]))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trial = switch_ema.trial(model, optimizer)
for epoch in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 2)).pow(2).mean().backward()
    optimizer.step()
    trial.end_epoch()
    trial.evaluate(lambda: {"loss": float(model.weight.norm())})
"""
SHORT = ("--epochs", "1", "--seeds", "2", "--executor", "inline", "--device", "cpu")


@pytest.fixture
def run_with(tmp_path, tmp_path_factory):
    """Run commands where only some extras are installed, also for their workers."""

    def run(extras, *arguments):
        hidden = absent(*extras)
        assert {"keras", "mypy", "ray"} <= hidden and "torch" not in hidden
        hide = tmp_path_factory.mktemp("hide")
        (hide / "sitecustomize.py").write_text(f"ABSENT = {hidden}\n{HIDE}")
        path = os.pathsep.join([str(hide), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )

    return run


def test_the_extra_cli_compares_scripts(tmp_path, run_with):
    (tmp_path / "train.py").write_text(SCRIPT)
    script = ("compare", "--script", f"{sys.executable} train.py {{seed}}")
    more = ("--methods", "plain", "ema", "--seeds", "1", "--name", "mine")
    run = run_with(["cli"], "-m", "switch_ema", *script, *more)
    assert run.returncode == 0, run.stderr
    assert "runs/mine/report.html" in run.stdout


LACKING = {
    "digits": ("sklearn", "toy"),
    "images": ("torchvision", "vision"),
    "ddpm": ("diffusers", "generation"),
    "retinanet": ("faster_coco_eval", "detection"),
    "bert-text": ("tokenizers", "language"),
    "simclr": ("lightly", "self-supervised"),
    "moving-mnist": ("torchmetrics", "video"),
}
EACH = """
import sys
from switch_ema.cli import main
for task in sys.argv[1:]:
    try:
        main(["compare", task])
    except SystemExit as left:
        assert left.code == 2
"""


def test_a_task_that_lacks_a_package_says_so_before_training(tmp_path, run_with):
    run = run_with(["cli"], "-c", EACH, *LACKING)
    assert (run.returncode, run.stdout) == (0, "")
    assert run.stderr.splitlines() == [
        f'switch-ema: {task} needs {module}: pip install "switch-ema[{extra}]".'
        for task, (module, extra) in LACKING.items()
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task", TASKS)
def test_the_extra_of_a_task_has_its_packages(task):
    extra = extra_of(task)
    digits = set() if extra == "language" else {"sklearn"}  # the data of many tasks
    assert not (digits | {*PACKAGES.get(task, ())}) & absent(extra)


def test_the_demo_needs_neither_diffusers_nor_timm(run_with):
    assert {*wanted("toy")} < {*wanted("bench")}  # which `make demo` installs
    command = ("-m", "switch_ema", "compare", "noisy-digits", "digits", *SHORT)
    run = run_with(["toy"], *command)
    assert run.returncode == 0, run.stderr
    assert "report.html" in run.stdout
