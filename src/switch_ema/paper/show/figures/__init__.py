"""The paper's figures, and two more: what to train and how to draw runs.

To add a figure, write a file with a ``FigureKind`` beside these and add it to
``FIGURES``.
"""

from collections.abc import Mapping

from switch_ema.paper.show.figures.boundary import BOUNDARY
from switch_ema.paper.show.figures.convergence import CONVERGENCE
from switch_ema.paper.show.figures.decay import DECAY
from switch_ema.paper.show.figures.figure import FigureKind
from switch_ema.paper.show.figures.gains import GAINS
from switch_ema.paper.show.figures.landscape import LANDSCAPE
from switch_ema.paper.show.figures.mechanism import MECHANISM
from switch_ema.paper.show.figures.plane import PLANE
from switch_ema.paper.tables.table import PaperTable

FIGURES: dict[str, FigureKind] = {
    kind.name: kind
    for kind in (CONVERGENCE, LANDSCAPE, PLANE, BOUNDARY, DECAY, GAINS, MECHANISM)
}
"""By the name that ``switch-ema figure`` gives them."""


def make_figures(tables: Mapping[str, PaperTable]) -> list[PaperTable]:
    """Build the figures that ``switch-ema reproduce`` trains and draws."""
    return [kind.make(tables) for kind in FIGURES.values() if kind.make]
