"""Starts a command and leaves none of its processes behind.

This file is also a program: ``python -I -S guard.py FILES COMMAND...``, with the
standard library alone. A worker starts it in the place of the command and holds the
other end of a pipe. When that closes, because the worker stops or is killed, or when
the command ends, every process of the command gets SIGTERM and, some seconds later,
SIGKILL. On Linux these are all descendants, also those with a session of their own, as
torchrun's: orphans become children of the guard. Elsewhere it is the process group.
"""

import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""
GIVE_UP_SECONDS = 5.0
"""Time after SIGKILL in which processes can be expected to be gone."""

_IS_LINUX = sys.platform == "linux"
_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # of prctl(2)
_POLL_SECONDS = 0.05


def die_with_parent(parent: int) -> None:
    """Let the system kill this process when its parent is gone, where it can (Linux).

    Args:
        parent: its process id, in case that it is gone already.
    """
    if _IS_LINUX:
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class _Guard:
    """The command's first process, and what has come of it."""

    def __init__(self, pipe: int, command: list[str]) -> None:
        self._pipe = pipe
        self._status: int | None = None
        if _IS_LINUX:
            _prctl(_CHILD_SUBREAPER, 1)
        # Signals only interrupt the waiting: what has happened is looked up.
        self._heard, told = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        guard = os.getpid()
        self._first = os.fork()
        if self._first == 0:
            _become(command, guard)

    def run(self) -> int:
        """Wait for the command or for the pipe; return how the command has ended."""
        while self._status is None and not self._is_to_stop():
            self._reap()
        self._end()
        return 0 if self._status is None else os.waitstatus_to_exitcode(self._status)

    def _is_to_stop(self) -> bool:
        ready, _, _ = select.select([self._pipe, self._heard], [], [])
        stopped = b""
        if self._heard in ready:
            stopped = bytes({*os.read(self._heard, 4096)} - {signal.SIGCHLD})
        return self._pipe in ready or bool(stopped)

    def _end(self) -> None:
        """End all processes that are left."""
        told: set[int] = set()
        for number, seconds in (
            (signal.SIGTERM, GRACE_SECONDS),
            (signal.SIGKILL, GIVE_UP_SECONDS),
        ):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                self._reap()
                left = _descendants() if _IS_LINUX else _group(self._first)
                if not left:
                    return
                for process in left:
                    if number == signal.SIGKILL or process not in told:
                        told.add(process)
                        with suppress(ProcessLookupError, PermissionError):
                            os.kill(process, number)
                time.sleep(_POLL_SECONDS)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._first:
                    self._status = found[1]


def _become(command: list[str], guard: int) -> None:
    """Turn a forked process into the command."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (
            *(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT),
            *(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores these
        ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        die_with_parent(guard)
        os.execvp(command[0], command)
    except OSError as error:
        reason = f"{command[0]} cannot be started: {error.strerror}\n"
        os.write(2, reason.encode(errors="backslashreplace"))
    finally:
        os._exit(127)


def _descendants() -> list[int]:
    """List the living processes below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of a program, in brackets, may hold anything.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in b"ZX":
                    children.setdefault(int(parent), []).append(int(name))
    found = [os.getpid()]
    for process in found:
        found += children.get(process, ())
    return found[1:]


def _group(first: int) -> list[int]:
    """Return the number that stands for a process group, if there is one."""
    try:
        os.killpg(first, 0)
    except (ProcessLookupError, PermissionError):
        return []
    return [-first]


def main() -> None:
    """Guard a command; end as it has ended."""
    files = list(map(int, sys.argv[1].split(",")))
    for file in files:  # the command must not hold them open
        os.set_inheritable(file, False)
    code = _Guard(files[0], sys.argv[2:]).run()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)


if __name__ == "__main__":
    main()
