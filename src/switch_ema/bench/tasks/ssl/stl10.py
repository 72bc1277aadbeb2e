"""STL-10: 5,000 labelled and 100,000 unlabelled training images of 96 pixels."""

import numpy as np
import torch

from switch_ema.bench.data import sources
from switch_ema.bench.data.images import ImageSet
from switch_ema.bench.errors import UsageError

FOLDER = "stl10_binary"
EXPECTED = (
    "train_X.bin",
    "train_y.bin",
    "unlabeled_X.bin",
    "test_X.bin",
    "test_y.bin",
    "class_names.txt",
    "fold_indices.txt",
)


def load_stl10(*, download: bool) -> ImageSet:
    """Read STL-10; unlabelled images have the label -1 and follow the labelled ones."""
    datasets = sources.need("torchvision.datasets")
    folders = [sources.data_folder(), sources.download_folder()]
    known = [f for f in folders if f is not None and (f / FOLDER).is_dir()]
    if not known and not download:
        raise UsageError(
            f"the data stl10 was not found: set {sources.FOLDER} to a folder with "
            f"{FOLDER}, or give the option download=True."
        )
    folder = known[0] if known else sources.download_folder()
    if known and not download:
        there = {path.name for path in (folder / FOLDER).iterdir()}
        missing = [name for name in EXPECTED if name not in there]
        if missing:
            raise UsageError(
                f"{folder / FOLDER} must hold {', '.join(EXPECTED)}; found "
                f"{', '.join(sorted(there)) or 'nothing'}, so "
                f"{', '.join(missing)} is missing."
            )
    try:
        train = datasets.STL10(folder, split="train+unlabeled", download=download)
        test = datasets.STL10(folder, split="test", download=download)
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"stl10 in {folder} cannot be read: {reason}.") from None
    arrays = (train.data, train.labels, test.data, test.labels)
    x, y, x_test, y_test = (torch.from_numpy(np.asarray(array)) for array in arrays)
    return ImageSet(x, y.long(), x_test, y_test.long())
