"""Report section that compares theory and simulations."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from switch_ema.analysis.matplotlib_style import save_figure
from switch_ema.bench.report.sections import FIGURES, AnalysisSection, Picture, Sheet
from switch_ema.theory.checks import Check
from switch_ema.theory.gallery import example_model, gallery
from switch_ema.theory.propositions import (
    Verdict,
    proposition_1,
    proposition_2,
    proposition_3,
)

RATE, DECAY, EVERY, DISTANCE = 0.5, 0.99, 100, 3.0
"""Settings at which the propositions are checked: typical values."""
_CAPTIONS = {
    "theory-variance": "Stationary variances in closed form (lines) and simulated "
    "(points with two standard errors), over the learning rate.",
    "theory-time": "Expected loss over time, starting away from the minimum, for "
    "short and long intervals between switches.",
    "theory-map": "Where switching helps: expected loss of Switch EMA against EMA and "
    "against SGD, over the window in intervals and the learning rate.",
    "theory-bounds": "Proposition 3: the bounds, the errors that they bound, and the "
    "sigma of the first switch.",
}


def theory_section(
    checks: Sequence[Check],
    folder: Path,
    flags: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> AnalysisSection:
    """Draw the figures and build the tables; pictures are saved in the folder.

    Args:
        checks: the closed forms and their simulations.
        folder: where pictures are saved.
        flags: options of the command that reproduces the section.
        progress: called with done and total before and after each figure.
    """
    pictures: list[Picture] = []
    progress(0, len(_CAPTIONS))
    for name, figure in gallery():
        save_figure(figure, folder / FIGURES, name)
        words = _CAPTIONS[name]
        pictures.append(Picture(name=name, caption=words, alternative=words))
        progress(len(pictures), len(_CAPTIONS))
    beyond = [check for check in checks if abs(check.deviation) > 3]
    summary = (
        f"{len(checks)} numbers compared: {len(beyond)} differ by more than 3 standard "
        f"errors, where chance alone gives about {0.0027 * len(checks):.1f}; the "
        f"largest difference is {max(abs(c.deviation) for c in checks):.2f}."
    )
    return AnalysisSection(
        key="theory",
        title="Closed forms, simulations and propositions",
        command=f"switch-ema theory {flags}",
        paragraphs=[summary],
        pictures=pictures,
        sheets=[_verdicts_sheet(), _checks_sheet(checks)],
    )


def _checks_sheet(checks: Sequence[Check]) -> Sheet:
    return Sheet(
        caption="Closed form against independent chains; the last column is the "
        "difference in standard errors.",
        header=[
            "quantity",
            "setting",
            "closed form",
            "simulated",
            "s.e.",
            "difference",
        ],
        rows=[
            [
                check.quantity,
                str(check.setting),
                f"{check.exact:.5g}",
                f"{check.simulated:.5g}",
                f"{check.standard_error:.1g}",
                f"{check.deviation:+.2f}",
            ]
            for check in checks
        ],
        is_folded=True,
    )


def _verdicts_sheet() -> Sheet:
    model = example_model()
    start = np.full(model.size, DISTANCE)
    verdicts: list[Verdict] = [
        *proposition_1(model, RATE, DECAY),
        *proposition_2(model, RATE, DECAY, EVERY, start),
        *proposition_3(model, RATE, DECAY, EVERY, start),
    ]
    return Sheet(
        caption=f"The propositions on {model.size} directions with curvatures from "
        f"0.01 to 1, at learning rate {RATE}, decay {DECAY}, T = {EVERY}, starting "
        f"{DISTANCE:g} away from the minimum in each direction.",
        header=["claim", "proposition", "claimed", "measured", "holds"],
        rows=[
            [
                verdict.claim,
                str(verdict.proposition),
                f"{verdict.claimed:.4g}",
                f"{verdict.measured:.4g}",
                "yes" if verdict.holds else "no",
            ]
            for verdict in verdicts
        ],
    )
