"""Experimental methods: names, options and defaults may change in a minor release.

``switch-ema methods``, ``METHODS`` and ``create_averager`` know them by name, like the
stable methods of :mod:`switch_ema`.
"""

from switch_ema.averaging.contrib import *
from switch_ema.averaging.contrib import __all__ as __all__
