"""STL-10: 5,000 labelled and 100,000 unlabelled training images of 96 pixels."""

from pathlib import Path

import numpy as np
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.images import ImageSet

FOLDER = "stl10_binary"
_EXPECTED = (
    "train_X.bin",
    "train_y.bin",
    "unlabeled_X.bin",
    "test_X.bin",
    "test_y.bin",
    "class_names.txt",
    "fold_indices.txt",
)


def find_stl10() -> Path | None:
    """Return the folder that contains ``stl10_binary``, if any."""
    folders = (sources.data_folder(), sources.download_folder())
    return next((f for f in folders if f is not None and (f / FOLDER).is_dir()), None)


def load_stl10(*, unlabelled: bool, download: bool) -> ImageSet:
    """Read STL-10 from its published files.

    Args:
        unlabelled: Whether to append the unlabelled training images, with label -1.
        download: Whether torchvision may download missing data.
    """
    found = find_stl10()
    if found is None and not download:
        raise UsageError(
            f"the data stl10 was not found: set {sources.FOLDER} to a folder with "
            f"{FOLDER}, or pass the option download=True."
        )
    folder = found or sources.download_folder()
    if not download:
        _check_files(folder / FOLDER)
    make = sources.need("torchvision.datasets").STL10
    train = "train+unlabeled" if unlabelled else "train"
    try:
        parts = [
            make(folder, split=split, download=download) for split in (train, "test")
        ]
    except (RuntimeError, OSError) as error:
        if download:
            raise sources.download_failed("stl10", error) from None
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"stl10 in {folder} cannot be read: {reason}.") from None
    x, y, x_test, y_test = (
        torch.from_numpy(np.asarray(array))
        for part in parts
        for array in (part.data, part.labels)
    )
    return ImageSet(x, y.long(), x_test, y_test.long())


def _check_files(folder: Path) -> None:
    there = {path.name for path in folder.iterdir()}
    missing = [name for name in _EXPECTED if name not in there]
    if missing:
        raise UsageError(
            f"{folder} must contain {', '.join(_EXPECTED)}; found "
            f"{', '.join(sorted(there)) or 'nothing'}, so "
            f"{', '.join(missing)} is missing."
        )
