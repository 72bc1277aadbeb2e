"""Experimental methods, one file each; their public path is ``switch_ema.contrib``.

They are tested like the stable ones, but names, options and defaults may change in any
minor release. A method is added by its row here, as in ``averaging.methods``.
"""

from switch_ema.averaging.contrib.bema import BEMA
from switch_ema.averaging.contrib.elastic_reset import ElasticReset
from switch_ema.averaging.contrib.fge import CyclicRate, MidCycle, average_predictions
from switch_ema.averaging.contrib.literal_eq3 import LiteralEq3
from switch_ema.averaging.contrib.pace import PACE
from switch_ema.averaging.contrib.snoo import Snoo
from switch_ema.averaging.contrib.swag import SWAG
from switch_ema.averaging.contrib.tail_ema import TailEMA
from switch_ema.averaging.contrib.twa import trained_average
from switch_ema.averaging.schedules.adaptive import Adaptive

__all__ = [  # noqa: RUF022 - in the order of lists and tables
    # Methods
    "LiteralEq3",
    "Snoo",
    "PACE",
    "ElasticReset",
    "BEMA",
    "TailEMA",
    "SWAG",
    # When Switch EMA switches
    "Adaptive",
    # Fast geometric ensembling
    "CyclicRate",
    "MidCycle",
    "average_predictions",
    # Trained weights of snapshots
    "trained_average",
]
