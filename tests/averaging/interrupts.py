"""Signals at a chosen moment."""

import signal
import sys
from pathlib import Path

import torch

import switch_ema

ROOT = Path(switch_ema.__file__).parent


class InterruptAt:
    """Raises SIGINT at the n-th instruction or call within the library."""

    def __init__(self, n):
        self.left = n

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def _trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(str(ROOT)):
            return None
        self._count()
        return self._line

    def _line(self, frame, event, argument):
        if event == "line":  # Python hears no signal while a function returns
            self._count()
        return self._line

    def _count(self):
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in second)
