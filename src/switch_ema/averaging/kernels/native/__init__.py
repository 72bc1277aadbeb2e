"""C kernels for CPU tensors, compiled on first use.

Without a compiler, :mod:`switch_ema.averaging.kernels.torch_ops` does the same work.
"""

from switch_ema.averaging.kernels.native.calls import (
    AdamNumbers,
    SgdNumbers,
    Table,
    adam_,
    copy_,
    exchange_,
    first_non_finite,
    join_,
    lerp_,
    lerp_dithered_,
    lines_of,
    prepare,
    sgd_,
    split_,
    table_of,
)
from switch_ema.averaging.kernels.native.library import is_available, is_switched_off

__all__ = [
    "AdamNumbers",
    "SgdNumbers",
    "Table",
    "adam_",
    "copy_",
    "exchange_",
    "first_non_finite",
    "is_available",
    "is_switched_off",
    "join_",
    "lerp_",
    "lerp_dithered_",
    "lines_of",
    "prepare",
    "sgd_",
    "split_",
    "table_of",
]
