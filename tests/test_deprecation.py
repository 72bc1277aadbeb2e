"""Old names warn once and lead to the new ones."""

import subprocess
import sys
import warnings

import pytest

from switch_ema._deprecation import warn_deprecated


def test_the_warning_names_the_replacement_the_version_and_the_callers_line():
    def old_function():
        warn_deprecated("pkg.old", "pkg.new", removed_in="0.4")

    with pytest.warns(
        FutureWarning, match=r"^pkg.old is .* in 0.4; use pkg.new.$"
    ) as w:
        old_function()
    assert w[0].filename == __file__


def test_a_name_warns_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("pkg.a", "pkg.a", "pkg.b"):
            warn_deprecated(name, "pkg.new", removed_in="0.4")
    assert [str(one.message).split()[0] for one in caught] == ["pkg.a", "pkg.b"]


def test_a_module_that_has_moved_still_has_its_names():
    code = (
        "import warnings; warnings.simplefilter('error', FutureWarning)\n"
        "try:\n    import switch_ema.analysis.style\n"
        "except FutureWarning as warning:\n    print(warning)\n"
        "warnings.simplefilter('ignore')\n"
        "from switch_ema.analysis import matplotlib_style, style\n"
        "assert style.paper_style is matplotlib_style.paper_style\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "use switch_ema.analysis.matplotlib_style." in run.stdout
