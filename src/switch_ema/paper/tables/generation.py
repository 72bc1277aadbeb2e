"""Table 8 of the paper: image generation with DDPM."""

from switch_ema.bench.recipe import Metric
from switch_ema.paper.tables.table import (
    FRESH,
    PaperMetric,
    PaperRow,
    PaperTable,
    RowSetting,
    values_of,
)
from switch_ema.zoo.decays import DECAYS

_INCEPTION = "weights-inception-2015-12-05-6726825d.pth"
"""FID's network as torch-fidelity publishes it, looked for in the folder of data."""

_METHODS = ("plain", "ema", "swa", "lookahead", "switch-ema")
_FID = Metric(name="FID", higher_is_better=False, decimals=2)


def _row(
    dataset: str, title: str, epochs: int, first_seed: int, cells: str, gain: float
) -> PaperRow:
    return PaperRow(
        name=dataset,
        title=title,
        # The second row repeats the first with other seeds.
        small=RowSetting(
            task="ddpm", epochs=48, evaluate_every=24, first_seed=first_seed
        ),
        paper=RowSetting(
            task="ddpm",
            options={"dataset": dataset, "scale": "paper", "inception": _INCEPTION},
            epochs=epochs,
            decays=DECAYS[dataset, "generation"],
        ),
        metrics=(
            PaperMetric(
                metric=_FID, values=values_of(_METHODS, cells), printed_gain=gain
            ),
        ),
        baseline="ema",
    )


TABLE_8 = PaperTable(
    name="table-8",
    title="Image generation with DDPM on CIFAR-10 and CelebA",
    family="generation",
    small_note=(
        "Both rows train on digits of 8 by 8 pixels, with different seeds. Their "
        "distance is measured in the features of a digit classifier, so only the sign "
        "and the size of gains can be compared with FID."
    ),
    rows=(
        _row("cifar10", "CIFAR-10", 2000, FRESH, "7.17 5.43 6.35 6.84 5.30", 0.13),
        _row(
            "celeba", "CelebA-Align", 600, FRESH + 100, "7.90 7.49 7.53 7.67 7.11", 0.38
        ),
    ),
)
