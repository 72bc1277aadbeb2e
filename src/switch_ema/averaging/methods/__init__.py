"""One file per method, and the slow reference beside them.

A method becomes public by its row here: an import and its name. Everything else that
lists methods is derived from these rows and from the classes.
"""

from switch_ema.averaging.methods.bema import BEMA
from switch_ema.averaging.methods.elastic_reset import ElasticReset
from switch_ema.averaging.methods.ema import EMA
from switch_ema.averaging.methods.lawa import LAWA
from switch_ema.averaging.methods.literal_eq3 import LiteralEq3
from switch_ema.averaging.methods.lookahead import Lookahead
from switch_ema.averaging.methods.pace import PACE
from switch_ema.averaging.methods.posthoc import PostHocEMA
from switch_ema.averaging.methods.pswa import PSWA
from switch_ema.averaging.methods.snoo import Snoo
from switch_ema.averaging.methods.swa import SWA
from switch_ema.averaging.methods.swag import SWAG
from switch_ema.averaging.methods.switch_ema import SwitchEMA
from switch_ema.averaging.methods.tail_ema import TailEMA

__all__ = [  # noqa: RUF022 - in the order of lists and tables
    "EMA",
    "SwitchEMA",
    "SWA",
    "Lookahead",
    "LAWA",
    "PSWA",
    "PostHocEMA",
    "LiteralEq3",
    "Snoo",
    "PACE",
    "ElasticReset",
    "BEMA",
    "TailEMA",
    "SWAG",
]
