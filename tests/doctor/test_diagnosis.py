"""The doctor names faults of averages, and finds nothing in healthy ones.

One library for each fault; ``python -m tests.doctor.faults`` runs all, with more seeds.
"""

from typing import ClassVar

import pytest

from switch_ema import LAWA, SWA, SwitchEMA
from switch_ema.doctor.diagnosis import diagnose
from tests.doctor.faults import FAULTS, LIBRARIES, Average, Case, examine, healthy


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault, tmp_path):
    expected, _, libraries = FAULTS[fault]
    library = (libraries or tuple(LIBRARIES))[-1]
    result = examine(fault, library, 0, tmp_path)
    assert expected in [finding.fault.name for finding in result.findings]
    assert result.exit_code == 1


@pytest.mark.parametrize("library", LIBRARIES)
def test_healthy_averages_have_no_findings(library, tmp_path):
    result = healthy(library, 1, tmp_path, 0.95)
    assert result.findings == ()
    for decay in result.decays:
        assert decay == pytest.approx(0.95, abs=0.03)


class OfMethod(Average):
    """Our other methods, and a warm-up."""

    method = SWA
    options: ClassVar[dict[str, object]] = {}

    def make(self, model, decay):
        self.inner = self.method(model, **self.options)

    def update(self, model):
        self.inner.update()
        if self.inner.steps % 25 == 0:
            self.inner.end_epoch()

    def content(self, live):
        return {"model": live, "ema": self.inner.state_dict()}


@pytest.mark.parametrize(
    ("method", "options"),
    [(SWA, {}), (LAWA, {}), (SwitchEMA, {"decay": 0.99}), (SwitchEMA, {"decay": 0.9})],
)
def test_other_methods_have_no_findings(method, options, tmp_path):
    library = type("Library", (OfMethod,), {"method": method, "options": options})
    assert diagnose(Case(library, 0, tmp_path).run()).findings == ()


def test_a_single_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 2 checkpoints"):
        diagnose([tmp_path / "one.pt"])
