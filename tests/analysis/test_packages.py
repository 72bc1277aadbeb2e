"""The four packages offer their names, and import them when they are used."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = ["boundary", "calibration", "landscape", "sharpness"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_can_be_imported(name):
    package = importlib.import_module(f"switch_ema.analysis.{name}")
    for public in package.__all__:
        assert getattr(package, public) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018 - it is the access that raises


def test_computing_does_not_import_matplotlib():
    code = (
        "import sys\n"
        "from switch_ema.analysis.boundary import measure_boundaries\n"
        "from switch_ema.analysis.calibration import reliability\n"
        "from switch_ema.analysis.landscape import landscape_1d\n"
        "from switch_ema.analysis.sharpness import measure_sharpness\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
