"""Video prediction networks, small and as in the paper."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from switch_ema.zoo.models.video.metaformers import METAFORMERS
from switch_ema.zoo.models.video.recurrent import ConvLSTM, PredRNN, Recurrent
from switch_ema.zoo.models.video.simvp import SimVP


@dataclass(frozen=True, kw_only=True)
class VideoNetwork:
    """A network at both scales."""

    title: str
    make: dict[str, Callable[[int], nn.Module]]
    """By scale: small and paper; from the side of a frame."""


def _simvp(translator: str) -> dict[str, Callable[[int], nn.Module]]:
    small: dict[str, Any] = {"width": 8, "hidden": 64, "depth": 4, "kernels": (3, 5)}
    return {
        "small": lambda side: SimVP(translator, side=side, **small),
        "paper": lambda side: SimVP(
            translator, side=side, width=64, hidden=512, depth=8
        ),
    }


VIDEO_NETWORKS: dict[str, VideoNetwork] = {
    "simvp": VideoNetwork(title="SimVP", make=_simvp("inception")),
    "simvp-v2": VideoNetwork(title="SimVP.V2 (gSTA)", make=_simvp("gsta")),
    **{
        f"simvp-{name}": VideoNetwork(title=f"SimVP ({title})", make=_simvp(name))
        for name, (title, _) in METAFORMERS.items()
    },
    "convlstm": VideoNetwork(
        title="ConvLSTM",
        make={
            "small": lambda side: ConvLSTM(widths=(24, 24), kernel=3),
            "paper": lambda side: ConvLSTM(widths=(128,) * 4, kernel=5, unused=True),
        },
    ),
    "predrnn": VideoNetwork(
        title="PredRNN",
        make={
            "small": lambda side: PredRNN(widths=(16, 16), kernel=3),
            "paper": lambda side: PredRNN(widths=(128,) * 4, kernel=5),
        },
    ),
}

__all__ = [
    "METAFORMERS",
    "VIDEO_NETWORKS",
    "ConvLSTM",
    "PredRNN",
    "Recurrent",
    "SimVP",
    "VideoNetwork",
]
