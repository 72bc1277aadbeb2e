"""Tables 4 and 5 of the paper: self-supervised pre-training."""

from switch_ema.paper.tables.classification import (
    FIRST_SEEDS,
    SAME_DATA,
    TWO_DECIMALS,
)
from switch_ema.paper.tables.table import (
    EPOCHS,
    PaperMetric,
    PaperRow,
    PaperTable,
    RowSetting,
    TeacherDecays,
    values_of,
)
from switch_ema.zoo.decays import DECAYS, Decays

SELF_TEACHING = ("moco-v2", "byol", "moco-v3")
"""Methods with an averaged teacher: EMA is their baseline."""

MASKED = ("simmim", "a2mim", "mae")
"""Methods that the paper fine-tunes; the others are measured by a linear probe."""

PROBED = (
    "Every self-supervised method is measured by a linear probe here; in the paper "
    "SimMIM, A2MIM and MAE are fine-tuned."
)

_TITLES = {
    "simclr": "SimCLR",
    "moco-v2": "MoCo.V2",
    "byol": "BYOL",
    "barlow-twins": "BarlowTwins",
    "moco-v3": "MoCo.V3",
    "simmim": "SimMIM",
    "a2mim": "A2MIM",
    "mae": "MAE",
}
_DATASETS = {"cifar100": "CIFAR-100", "stl10": "STL-10"}
_NETWORKS = {
    "resnet18": "R-18",
    "resnet50": "R-50",
    "deit-s": "DeiT-S",
    "deit-b": "DeiT-B",
}
_METHODS = ("plain", "ema", "swa", "switch-ema")
_FLATTENED = {
    "simclr": (50, Decays(0.93293, 0.93293)),
    "barlow-twins": (50, Decays(0.93293, 0.93293)),
    "mae": (40, Decays(0.96187, 0.96187)),
}
"""Epochs after which plain training of the small rows flattens, and decays. At a switch
MAE keeps the paper's 26% of an epoch's progress (0.999 with 625 steps, here 15), SimCLR
and Barlow Twins 40%: the paper's 0.999 with 12 steps keeps 0.6%."""


def _teacher(pretraining: str, dataset: str) -> TeacherDecays:
    images = {"cifar100": 50_000, "stl10": 105_000, "imagenet": 1_281_167}[dataset]
    batch = 256 if pretraining == "moco-v2" else 4096
    return TeacherDecays(decays=DECAYS[dataset, "contrastive"], steps=images // batch)


def _row(
    name: str,
    title: str,
    pretraining: str,
    dataset: str,
    network: str,
    epochs: int,
    cells: str,
    gain: float,
) -> PaperRow:
    teaches = pretraining in SELF_TEACHING
    kind = "masked" if pretraining in MASKED else "contrastive"
    small_epochs, small_decays = _FLATTENED.get(pretraining, (None, None))
    options: dict[str, object] = {"network": network, "dataset": dataset}
    options["scale"] = "paper"
    if pretraining in MASKED:
        options["protocol"] = "fine-tune"
    # Once, at the end: on ImageNet it may take longer than an epoch.
    options["protocol_every"] = EPOCHS
    return PaperRow(
        name=name,
        title=f"{_TITLES[pretraining]}, {title}",
        small=RowSetting(
            task=pretraining,
            options={"network": network, "scale": "small"},
            epochs=small_epochs,
            evaluate_every=None if small_epochs is None else 5,
            decays=small_decays,
            first_seed=FIRST_SEEDS[dataset],
        ),
        paper=RowSetting(
            task=pretraining,
            options=options,
            epochs=epochs,
            # A teacher's decay rises along a schedule of the method's own.
            decays=None if teaches else DECAYS[dataset, kind],
            teacher=_teacher(pretraining, dataset) if teaches else None,
        ),
        metrics=(
            PaperMetric(
                metric=TWO_DECIMALS,
                values=values_of(_METHODS, cells),
                printed_gain=gain,
            ),
        ),
        baseline="ema" if teaches else "plain",
    )


def _small(
    pretraining: str, dataset: str, network: str, cells: str, gain: float
) -> PaperRow:
    name = f"{pretraining}-{dataset}"
    title = f"{_DATASETS[dataset]}, {_NETWORKS[network]}"
    return _row(name, title, pretraining, dataset, network, 1000, cells, gain)


def _imagenet(
    pretraining: str, network: str, epochs: int, cells: str, gain: float
) -> PaperRow:
    title = f"{_NETWORKS[network]}, {epochs}ep"
    dataset = "imagenet"
    return _row(pretraining, title, pretraining, dataset, network, epochs, cells, gain)


TABLE_4 = PaperTable(
    name="table-4",
    title="Self-supervised pre-training on CIFAR-100 and STL-10",
    family="self-supervised",
    small_note=f"{SAME_DATA} {PROBED}",
    rows=(
        _small("simclr", "cifar100", "resnet18", "67.18 58.46 57.82 67.28", 0.10),
        _small("simclr", "stl10", "resnet50", "91.77 82.82 91.36 92.93", 1.16),
        _small("moco-v2", "cifar100", "resnet18", "62.34 66.53 62.85 66.56", 0.03),
        _small("moco-v2", "stl10", "resnet50", "91.33 91.36 91.40 91.48", 0.12),
        _small("byol", "cifar100", "resnet18", "55.09 69.60 56.36 69.86", 0.26),
        _small("byol", "stl10", "resnet50", "75.76 93.24 76.29 93.48", 0.24),
        _small("barlow-twins", "cifar100", "resnet18", "65.49 60.13 60.53 65.55", 0.06),
        _small("barlow-twins", "stl10", "resnet50", "88.67 80.11 88.35 88.80", 0.13),
        _small("moco-v3", "cifar100", "deit-s", "38.09 46.79 39.61 52.27", 5.48),
        _small("moco-v3", "stl10", "deit-s", "61.88 79.25 62.49 80.44", 1.19),
        _small("simmim", "cifar100", "deit-s", "81.96 82.05 81.77 82.15", 0.19),
        _small("simmim", "stl10", "deit-s", "91.88 69.14 78.23 92.06", 0.18),
        _small("a2mim", "cifar100", "deit-s", "82.28 82.14 82.05 82.46", 0.18),
        _small("a2mim", "stl10", "deit-s", "92.27 70.88 80.64 93.33", 1.06),
    ),
)

TABLE_5 = PaperTable(
    name="table-5",
    title="Self-supervised pre-training on ImageNet-1K",
    family="self-supervised",
    small_note=f"{SAME_DATA} {PROBED}",
    rows=(
        _imagenet("byol", "resnet50", 200, "65.49 69.78 66.37 69.96", 0.18),
        _imagenet("moco-v3", "deit-s", 300, "67.73 71.77 68.54 72.01", 0.24),
        _imagenet("simmim", "deit-b", 800, "83.85 83.94 83.79 84.16", 0.31),
        _imagenet("mae", "deit-b", 800, "83.33 83.37 83.35 83.48", 0.15),
    ),
)
