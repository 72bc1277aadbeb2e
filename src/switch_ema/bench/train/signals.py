"""Signals that wait until a training can save its state."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SAVE, _STOP = signal.SIGUSR1, signal.SIGTERM
_REQUEUE = signal.SIGUSR2
"""Held back only if somebody handles it: submitit requeues a job on this signal."""


class HeldSignals:
    """Holds back SIGTERM and SIGUSR1 while a training runs.

    The training asks for them after each step. It then saves its state and calls
    :meth:`deliver`: handlers that were there before are called now, SIGTERM without a
    handler raises KeyboardInterrupt, and after SIGUSR1 the training goes on.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "HeldSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (_SAVE, _STOP, _REQUEUE):
                before = signal.getsignal(number)
                # An ignored SIGTERM stays ignored, as under nohup.
                is_ours = number == _SAVE or (
                    number == _STOP and before == signal.SIG_DFL
                )
                if is_ours or callable(before):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._waiting.append(number)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    @property
    def are_waiting(self) -> bool:
        """Whether a signal arrived since the last delivery."""
        return bool(self._waiting)

    def deliver(self) -> None:
        """Act on the signals, after the state was saved.

        Raises:
            KeyboardInterrupt: SIGTERM arrived, or a handler ended the process.
        """
        waiting, self._waiting = self._waiting, []
        for number in waiting:
            before = self._before.get(number)
            if callable(before):
                self._call(before, number)
            elif number == _STOP:
                raise KeyboardInterrupt(number)

    def _call(self, handler: Callable[[int, None], object], number: int) -> None:
        try:
            handler(number, None)
        except SystemExit as error:  # of a task it would be a failure
            raise KeyboardInterrupt(number) from error
