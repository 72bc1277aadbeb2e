"""A missing library is named in one sentence, with what to install."""

import subprocess
import sys

import pytest

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
