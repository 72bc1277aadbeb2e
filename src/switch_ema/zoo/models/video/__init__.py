"""Video prediction networks, small and as in the paper."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from switch_ema.zoo.models.video.recurrent import ConvLSTM, PredRNN, Recurrent
from switch_ema.zoo.models.video.simvp import SimVP


@dataclass(frozen=True, kw_only=True)
class VideoNetwork:
    """A network at both scales."""

    title: str
    make: dict[str, Callable[[], nn.Module]]
    """By scale: small and paper."""


def _simvp(translator: str) -> dict[str, Callable[[], nn.Module]]:
    return {
        "small": lambda: SimVP(translator, width=8, hidden=64, depth=4, kernels=(3, 5)),
        "paper": lambda: SimVP(translator, width=64, hidden=512, depth=8),
    }


VIDEO_NETWORKS: dict[str, VideoNetwork] = {
    "simvp": VideoNetwork(title="SimVP", make=_simvp("inception")),
    "simvp-v2": VideoNetwork(title="SimVP.V2 (gSTA)", make=_simvp("gsta")),
    "convlstm": VideoNetwork(
        title="ConvLSTM",
        make={
            "small": lambda: ConvLSTM(widths=(24, 24), kernel=3),
            "paper": lambda: ConvLSTM(widths=(128,) * 4, kernel=5, unused=True),
        },
    ),
    "predrnn": VideoNetwork(
        title="PredRNN",
        make={
            "small": lambda: PredRNN(widths=(16, 16), kernel=3),
            "paper": lambda: PredRNN(widths=(128,) * 4, kernel=5),
        },
    ),
}

__all__ = [
    "VIDEO_NETWORKS",
    "ConvLSTM",
    "PredRNN",
    "Recurrent",
    "SimVP",
    "VideoNetwork",
]
