"""All methods by name: a new method is one file and one line here."""

from typing import Any

from torch import nn

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.methods.ema import EMA
from switch_ema.averaging.methods.lawa import LAWA
from switch_ema.averaging.methods.literal_eq3 import LiteralEq3
from switch_ema.averaging.methods.lookahead import Lookahead
from switch_ema.averaging.methods.posthoc import PostHocEMA
from switch_ema.averaging.methods.pswa import PSWA
from switch_ema.averaging.methods.swa import SWA
from switch_ema.averaging.methods.switch_ema import SwitchEMA
from switch_ema.averaging.step.hooks import Optimizers

METHODS: dict[str, type[Averager]] = {
    "ema": EMA,
    "switch-ema": SwitchEMA,
    "swa": SWA,
    "lookahead": Lookahead,
    "lawa": LAWA,
    "pswa": PSWA,
    "posthoc-ema": PostHocEMA,
    "literal-eq3": LiteralEq3,
}


def create_averager(
    name: str, model: nn.Module, optimizer: Optimizers = None, **options: Any
) -> Averager:
    """Make an averager by its name.

    >>> create_averager("ema", nn.Linear(1, 1), decay=0.99).name
    'ema'
    """
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}.")
    return METHODS[name](model, optimizer, **options)
