"""switch-ema: weight averaging for PyTorch as a plug-in of three lines."""

from switch_ema.averaging.attach import Attached, attach
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.checkpoint import StateMismatch
from switch_ema.averaging.decay import (
    DecaySchedule,
    constant,
    constant_warmup,
    cosine,
    count_warmup,
    exponential_warmup,
    half_life,
    linear_warmup,
    power_warmup,
)
from switch_ema.averaging.ema import EMA
from switch_ema.averaging.export import save_averaged
from switch_ema.averaging.fused import FusedAdam, FusedAdamW, FusedSGD
from switch_ema.averaging.lawa import LAWA
from switch_ema.averaging.literal_eq3 import LiteralEq3
from switch_ema.averaging.lookahead import Lookahead
from switch_ema.averaging.naming import load_weights, unwrap
from switch_ema.averaging.posthoc import PostHocEMA
from switch_ema.averaging.profiles import (
    exponential_profile,
    power_profile,
    uniform_profile,
)
from switch_ema.averaging.pswa import PSWA
from switch_ema.averaging.registry import METHODS, create_averager
from switch_ema.averaging.soup import Soup, greedy_soup, uniform_soup
from switch_ema.averaging.swa import SWA, ConstantAfter, swa_budget
from switch_ema.averaging.switch_ema import SwitchEMA
from switch_ema.averaging.switching import Epochs, Steps
from switch_ema.averaging.synthesis import fit_profile, synthesize

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - grouped by purpose
    # Methods
    "SwitchEMA",
    "EMA",
    "SWA",
    "LAWA",
    "Lookahead",
    "PSWA",
    "PostHocEMA",
    "LiteralEq3",
    "Averager",
    "METHODS",
    "create_averager",
    "attach",
    "Attached",
    # Optimizers that average in their step
    "FusedAdam",
    "FusedAdamW",
    "FusedSGD",
    # Afterwards: soups and synthesised profiles
    "Soup",
    "greedy_soup",
    "uniform_soup",
    "synthesize",
    "fit_profile",
    "power_profile",
    "exponential_profile",
    "uniform_profile",
    # Decay
    "DecaySchedule",
    "constant",
    "constant_warmup",
    "cosine",
    "count_warmup",
    "exponential_warmup",
    "half_life",
    "linear_warmup",
    "power_warmup",
    # When
    "Epochs",
    "Steps",
    # Around the methods
    "ConstantAfter",
    "StateMismatch",
    "load_weights",
    "save_averaged",
    "swa_budget",
    "unwrap",
]
