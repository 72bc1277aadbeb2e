"""The stable methods, one file each, and slow references beside them.

A method becomes public by its row here: an import and its name. The registry, the
public names, lists, figures and the reference derive from these rows and from the
classes. Experimental methods are in :mod:`switch_ema.averaging.contrib`.
"""

from switch_ema.averaging.methods.ema import EMA
from switch_ema.averaging.methods.lawa import LAWA
from switch_ema.averaging.methods.lookahead import Lookahead
from switch_ema.averaging.methods.posthoc import PostHocEMA
from switch_ema.averaging.methods.pswa import PSWA
from switch_ema.averaging.methods.swa import SWA
from switch_ema.averaging.methods.switch_ema import SwitchEMA

__all__ = [  # noqa: RUF022 - in the order of lists and tables
    "EMA",
    "SwitchEMA",
    "SWA",
    "Lookahead",
    "LAWA",
    "PSWA",
    "PostHocEMA",
]
