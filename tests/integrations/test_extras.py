"""What an installation pulls: torch alone, and with an extra only that library."""

from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

PROJECT = tomllib.loads(
    Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
)["project"]
EXTRAS = PROJECT["optional-dependencies"]
LIBRARIES = {
    "accelerate": "accelerate",
    "files": "safetensors",
    "ignite": "pytorch-ignite",
    "keras": "keras",
    "lightning": "lightning",
    "mmengine": "mmengine",
    "timm": "timm",
    "transformers": "transformers",
}


def names(requirements: list[str]) -> list[str]:
    return [Requirement(one).name for one in requirements]


def test_the_library_pulls_torch_alone():
    assert names(PROJECT["dependencies"]) == ["torch"]


@pytest.mark.parametrize("extra", LIBRARIES)
def test_an_extra_pulls_only_its_own(extra):
    assert names(EXTRAS[extra]) == [LIBRARIES[extra]]


def test_one_extra_has_all_of_them():
    (requirement,) = map(Requirement, EXTRAS["integrations"])
    assert requirement.name == PROJECT["name"]
    assert requirement.extras == set(LIBRARIES)
