"""Report section with landscapes, sharpness and calibration."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from switch_ema.analysis.calibration.figure import draw_reliability
from switch_ema.analysis.calibration.measures import Bin, Calibration
from switch_ema.analysis.landscape.figure import caption, draw_line, draw_surfaces
from switch_ema.analysis.matplotlib_style import save_figure
from switch_ema.analysis.method_style import display_name
from switch_ema.analysis.sharpness.figure import draw_sharpness
from switch_ema.analysis.sharpness.measures import NoiseCurve, Sharpness
from switch_ema.bench.analyses.landscape import TaskLandscape
from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.report.sections import FIGURES, AnalysisSection, Picture, Sheet
from switch_ema.bench.results.kept_weights import KeptTask


def landscape_section(
    kept: KeptTask,
    settings: LandscapeSettings,
    folder: Path,
    *,
    key: str,
    command: str,
    progress: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> AnalysisSection:
    """Measure and draw the landscape of one task; return its section.

    Args:
        kept: the weights.
        settings: resolution and range.
        folder: the run's folder; pictures go to its folder of figures.
        key: prefix of the file names.
        command: the command that reproduces the section.
        progress: called before each part with its name, the number of parts done, and
            the total.
    """
    landscape, methods = TaskLandscape(kept, settings), list(kept.weights)
    healthy = [method for method in methods if kept.is_finite(method)]
    measured = healthy if settings.sharpness else []
    total = 2 + (len(methods) > 1) + len(measured) + len(healthy)
    done = 0

    def begin(part: str) -> None:
        nonlocal done
        progress(f"{kept.name}: {part}", done, total)
        done += 1

    pictures = _Pictures(folder / FIGURES, key)
    begin("a random line")
    line = landscape.random_line()
    pictures.add("line", draw_line(line), caption(line))
    if len(methods) > 1:
        begin("the line between two methods")
        between = landscape.line_to(methods[-1])
        pictures.add("between", draw_line(between), caption(between))
    begin("the plane of the trajectories")
    plane = landscape.plane()
    if plane is not None and plane.gaps < plane.values["loss"].size:
        pictures.add("plane", draw_surfaces(plane), caption(plane))
    sheets = []
    if measured:
        sharp = {}
        for method in measured:
            begin(f"sharpness of {display_name(method)}")
            sharp[method] = landscape.sharpness(method)
        sheets.append(_sharpness_sheet(sharp))
        pictures.add("sharpness", _sharpness_figure(sharp), _SHARPNESS)
    trust = {}
    for method in healthy:
        begin(f"calibration of {display_name(method)}")
        found = landscape.calibration(method)
        if found is not None:
            trust[method] = found
    if trust:
        sheets.append(_calibration_sheet(trust))
        bins = {method: bins for method, (_, bins) in trust.items()}
        pictures.add("reliability", draw_reliability(bins), _RELIABILITY)
    return AnalysisSection(
        key=key,
        title=f"Landscape of {kept.name}",
        command=command,
        paragraphs=[
            _introduction(kept, not kept.trajectory),
            *_broken(methods, healthy),
        ],
        sheets=sheets,
        pictures=pictures.made,
    )


_SHARPNESS = (
    "Left: the largest eigenvalues of the Hessian of the training loss. Right: the "
    "mean rise of the loss under Gaussian noise relative to the filters, with one "
    "standard error. Lower is flatter."
)
_RELIABILITY = (
    "Accuracy against confidence on half of the test data, with 95% intervals; perfect "
    "calibration is on the diagonal. Below: histogram of the confidence."
)
_ALTERNATIVES = {
    "line": "Loss and metric of every method along a random direction",
    "between": "Loss and metric on the line between the first and the last method",
    "plane": "Contours of the loss with the trajectories of all methods",
    "sharpness": "Eigenvalues and loss under noise of every method",
    "reliability": "Accuracy against confidence of every method",
}


class _Pictures:
    """Saves figures and collects their captions."""

    def __init__(self, folder: Path, key: str) -> None:
        self.made: list[Picture] = []
        self._folder, self._key = folder, key

    def add(self, kind: str, figure: Figure, words: str) -> None:
        name = f"{self._key}-{kind}"
        save_figure(figure, self._folder, name)
        self.made.append(
            Picture(name=name, caption=words, alternative=_ALTERNATIVES[kind])
        )


def _introduction(kept: KeptTask, no_trajectory: bool) -> str:
    text = (
        f"Weights after the last epoch of seed {kept.seed}: pictures of a single "
        "training, not evidence about a method."
    )
    if no_trajectory:
        text += (
            " The trajectory was not kept: the model is too large, or the run is of an "
            "earlier version."
        )
    return text


def _broken(methods: list[str], healthy: list[str]) -> list[str]:
    return [
        f"The weights of {display_name(method)} are not finite: a gap in the pictures, "
        "and no row."
        for method in methods
        if method not in healthy
    ]


def _sharpness_figure(found: dict[str, tuple[Sharpness, NoiseCurve]]) -> Figure:
    eigenvalues = {name: sharp.eigenvalues for name, (sharp, _) in found.items()}
    curves = {name: curve for name, (_, curve) in found.items()}
    return draw_sharpness(eigenvalues, curves)


def _sharpness_sheet(found: dict[str, tuple[Sharpness, NoiseCurve]]) -> Sheet:
    rows = [
        [
            name,
            f"{sharp.loss:.2e}",
            f"{sharp.eigenvalues[0]:.3g}",
            f"{sharp.trace.mean:.3g}",
            f"{sharp.ascent_gap:.2e}",
            f"{sharp.box.percent:.2g}",
            f"{sharp.relative_noise.mean:.2e}",
        ]
        for name, (sharp, _) in found.items()
    ]
    return Sheet(
        caption="Sharpness of the training loss; larger is sharper. Top and trace: top "
        "eigenvalue and trace of the Hessian. Ascent: rise after one SAM step of "
        "length 0.05. Box: largest rise found in Keskar's box of 0.001, in percent. "
        "Noise: mean rise under noise of a tenth of the filters.",
        header=["method", "loss", "top", "trace", "ascent", "box", "noise"],
        rows=rows,
    )


def _calibration_sheet(
    found: dict[str, tuple[Calibration, tuple[Bin, ...]]],
) -> Sheet:
    rows = [
        [
            name,
            f"{100 * c.accuracy:.1f}",
            f"{100 * c.confidence:.1f}",
            f"{100 * c.ece:.1f}",
            f"{c.brier:.3f}",
            f"{c.nll:.3f}",
            f"{c.temperature:.2f}",
            f"{100 * c.tempered_ece:.1f}",
        ]
        for name, (c, _) in found.items()
    ]
    return Sheet(
        caption="Calibration on half of the test data. Accuracy, confidence and ECE "
        "(expected calibration error) in percent. The temperature T is fitted on the "
        "other half; the last column is the ECE after scaling by it.",
        header=[
            "method",
            "accuracy",
            "confidence",
            "ECE",
            "Brier",
            "NLL",
            "T",
            "ECE at T",
        ],
        rows=rows,
    )
