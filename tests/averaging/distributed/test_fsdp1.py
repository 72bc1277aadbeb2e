"""The older FSDP is refused in one sentence."""

import pytest
from torch import nn

from switch_ema import EMA
from switch_ema.averaging.distributed.fsdp import refuse_fsdp1


def test_fsdp1_is_refused_with_the_name_of_fsdp2():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    # Without a process group it cannot be made, but it can be recognised.
    module = fsdp.FullyShardedDataParallel.__new__(fsdp.FullyShardedDataParallel)
    nn.Module.__init__(module)
    model = nn.Sequential(nn.Linear(1, 1), module)
    with pytest.raises(TypeError, match=r"1 is wrapped .*FSDP1.*FSDP2"):
        EMA(model)
    refuse_fsdp1(nn.Linear(1, 1))
