"""Task data: finding, reading and splitting it."""

from typing import TYPE_CHECKING

from switch_ema._lazy import lazy_names

if TYPE_CHECKING:
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

_HOMES = {
    "DataSource": "sources",
    "ImageSet": "images",
    "Texts": "texts",
    "VisionSet": "vision",
    "catalogue": "sources",
    "check_split": "splits",
    "choose_split": "splits",
    "hold_out": "splits",
    "load_digit_images": "images",
    "load_images": "images",
    "load_texts": "texts",
    "load_vision": "vision",
    "redraw_labels": "splits",
    "stream": "splits",
}
__getattr__ = lazy_names(__name__, _HOMES)  # a list of tasks needs no torch
