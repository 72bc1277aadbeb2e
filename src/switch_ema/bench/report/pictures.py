"""Pictures that the methods have made, arranged for the page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from switch_ema.bench.results.samples import SamplePicture

_WIDE = 3
"""A picture this many times as wide as it is high needs the whole width."""


@dataclass(frozen=True)
class ShownPicture:
    """One picture of the page."""

    caption: str
    address: str
    """With the PNG file inside."""


@dataclass(frozen=True)
class Pictures:
    """All pictures of a task."""

    common: list[ShownPicture]
    """Those that are the same for all methods, such as the truth."""
    methods: list[tuple[str, list[ShownPicture]]]
    """The others, by method."""
    wide: bool
    """Whether methods stand one below the other instead of side by side."""


def arrange(samples: Sequence[SamplePicture]) -> Pictures | None:
    """Take what all methods have in common to the front; None without pictures."""
    if not samples:
        return None
    found: dict[str, dict[str, SamplePicture]] = {}
    for one in samples:
        found.setdefault(one.method, {})[one.caption] = one
    first, *others = found.values()
    common = [
        caption
        for caption, picture in first.items()
        if others
        and all(caption in o and o[caption].png == picture.png for o in others)
    ]
    return Pictures(
        common=[_shown(first[caption]) for caption in common],
        methods=[
            (
                method,
                [_shown(one) for one in made.values() if one.caption not in common],
            )
            for method, made in found.items()
        ],
        wide=any(_aspect(one.png) >= _WIDE for one in samples),
    )


def _shown(picture: SamplePicture) -> ShownPicture:
    content = base64.b64encode(picture.png).decode()
    return ShownPicture(picture.caption, f"data:image/png;base64,{content}")


def _aspect(png: bytes) -> float:
    """Read width by height from the header of a PNG file."""
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    return width / max(height, 1)
