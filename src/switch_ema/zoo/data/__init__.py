"""Task data: finding, reading and splitting it."""

from switch_ema.zoo.data.images import ImageSet, load_digit_images, load_images
from switch_ema.zoo.data.sources import DataSource, catalogue
from switch_ema.zoo.data.splits import (
    check_split,
    choose_split,
    hold_out,
    redraw_labels,
    stream,
)
from switch_ema.zoo.data.texts import Texts, load_texts
from switch_ema.zoo.data.vision import VisionSet, load_vision

__all__ = [
    "DataSource",
    "ImageSet",
    "Texts",
    "VisionSet",
    "catalogue",
    "check_split",
    "choose_split",
    "hold_out",
    "load_digit_images",
    "load_images",
    "load_texts",
    "load_vision",
    "redraw_labels",
    "stream",
]
