"""Defers Ctrl-C and other signals around work that must not be interrupted.

Python runs signal handlers between any two instructions of the main thread, so a
KeyboardInterrupt can be raised anywhere. Here the handlers are temporarily replaced by
one that holds signals back and delivers them afterwards.
"""

import _signal  # type: ignore[import-not-found]  # signal without enums: 0.4 us, not 5
from collections.abc import Collection
from types import CodeType, FrameType
from typing import Any

_SIGNALS = _signal.SIGTERM, _signal.SIGINT
"""Signals whose handlers may raise; their handlers are restored in this order."""


class Interrupts:
    """Holds signals back while ``holding`` is true, or while certain code runs.

    Args:
        protected: code objects; signals are held back while one of them runs as well.
    """

    def __init__(self, protected: Collection[CodeType] = ()) -> None:
        self.holding = True
        self._protected = protected
        self._held: list[tuple[int, FrameType | None]] = []
        self._handlers: dict[int, Any] = {}
        self._is_removed = False

    def install(self) -> None:
        """Replace the handlers, if this is the main thread and they are Python's."""
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                try:
                    _signal.signal(number, self._handle)
                except ValueError:  # not the main thread, which alone gets signals
                    self._handlers.clear()
                    return

    @property
    def is_waiting(self) -> bool:
        """Whether a signal is held back."""
        return bool(self._held)

    def remove(self) -> None:
        """Restore the handlers and deliver held-back signals, which may raise."""
        try:
            self._restore(_signal.SIGTERM)
        finally:
            self._restore(_signal.SIGINT)
        # If blocks are left out of order this handler may still be called; it then
        # passes everything on.
        self.holding, self._protected, self._is_removed = False, (), True
        held, self._held = self._held, []
        for number, frame in held:
            self._handlers[number](number, frame)

    def _restore(self, number: int) -> None:
        # Not if the user has set another handler in the meantime.
        if number in self._handlers and _signal.getsignal(number) == self._handle:
            _signal.signal(number, self._below(number))

    def _below(self, number: int) -> Any:
        """Return the previous handler, skipping those of blocks that have ended."""
        handler = self._handlers[number]
        owner = getattr(handler, "__self__", None)
        if isinstance(owner, Interrupts) and owner._is_removed:
            return owner._below(number)
        return handler

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.holding or self._is_protected(frame):
            self._held.append((number, frame))
        else:
            self._handlers[number](number, frame)

    def _is_protected(self, frame: FrameType | None) -> bool:
        while frame is not None and self._protected:
            if frame.f_code in self._protected:
                return True
            frame = frame.f_back
        return False


class Uninterrupted(Interrupts):
    """A ``with`` block during which signals are held back until its end."""

    __enter__ = Interrupts.install

    def __exit__(self, *error: object) -> None:
        self.remove()
