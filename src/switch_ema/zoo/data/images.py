"""Labelled images in memory: scikit-learn's digits, or published files."""

import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.cifar import read_cifar
from switch_ema.zoo.data.downloads import find_or_download
from switch_ema.zoo.data.idx import read_idx
from switch_ema.zoo.data.splits import stream

_CIFAR = ("cifar10", "cifar100")
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class ImageSet:
    """Images as bytes (count, channels, height, width), labels as integers."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def classes(self) -> int:
        """Count the classes."""
        return int(torch.cat([self.y_train, self.y_test]).max()) + 1

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return the per-channel mean and standard deviation of the training pixels."""
        # Histogram of the 256 values: avoids a float copy of all images.
        values = torch.arange(256, dtype=torch.double)
        counts = torch.zeros(self.x_train.shape[1], 256, dtype=torch.long)
        for part in torch.split(self.x_train, 1000):
            for count, channel in zip(counts, part.transpose(0, 1), strict=True):
                count += channel.flatten().bincount(minlength=256)
        shares = counts.double() / counts.sum(1, keepdim=True)
        mean = shares @ values
        deviation = (shares @ values**2 - mean**2).sqrt()
        return mean.float().view(-1, 1, 1), deviation.float().view(-1, 1, 1)


def load_images(name: str, seed: int, *, download: bool = False) -> ImageSet:
    """Load a dataset by name.

    The digits have no published split; the seed draws 1,000 training images.
    """
    if name == "digits":
        images, labels = load_digit_images()
        order = torch.randperm(len(labels), generator=stream(seed, "digits"))
        x, y = (images * 255).round().byte()[order], labels[order]
        return ImageSet(x[:1000], y[:1000], x[1000:], y[1000:])
    return _read(name, find_or_download(name, download=download))


@lru_cache(maxsize=2)
def _read(name: str, files: tuple[Path, ...]) -> ImageSet:
    if files[0].suffix == ".npz":
        return _image_set(*_read_npz(files[0]))
    return _image_set(*(read_cifar if name in _CIFAR else read_idx)(files))


@lru_cache(maxsize=1)
def load_digit_images() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's 1,797 digits, 8 by 8 pixels in [0, 1], and their labels."""
    digits = sources.need("sklearn.datasets").load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    return images.unsqueeze(1), torch.tensor(digits.target, dtype=torch.long)


def _read_npz(path: Path) -> tuple[np.ndarray, ...]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            missing = [array for array in _ARRAYS if array not in stored]
            if missing:
                raise UsageError(
                    f"{path} must contain the arrays {', '.join(_ARRAYS)}; "
                    f"{', '.join(missing)} not found."
                )
            return tuple(stored[array] for array in _ARRAYS)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None


def _image_set(*arrays: np.ndarray) -> ImageSet:
    x_train, y_train, x_test, y_test = (torch.from_numpy(array) for array in arrays)
    return ImageSet(
        _channels_first(x_train), y_train.long(), _channels_first(x_test), y_test.long()
    )


def _channels_first(images: Tensor) -> Tensor:
    if images.dim() == 3:
        return images.unsqueeze(1)
    return images.permute(0, 3, 1, 2).contiguous()
