"""switch-ema: weight averaging for PyTorch."""
from switch_ema.averaging.ema import EMA
from switch_ema.averaging.switch_ema import SwitchEMA
