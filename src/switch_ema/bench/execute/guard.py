"""Runs a command and leaves none of its processes behind.

This file is also a program that needs only the standard library:
``python -I -S guard.py FILES COMMAND...``. A worker starts it instead of the command
and holds the write end of a pipe. When the pipe closes, because the worker stopped or
was killed, or when the command ends, every process of the command gets SIGTERM and,
some seconds later, SIGKILL. On Linux that covers all descendants, even those in a
session of their own, such as torchrun's: orphans become children of the guard.
Elsewhere it covers the process group.
"""

import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

GRACE_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL."""
GIVE_UP_SECONDS = 5.0
"""Seconds to wait after SIGKILL for processes to disappear."""

_IS_LINUX = sys.platform == "linux"
_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # of prctl(2)
_POLL_SECONDS = 0.05


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent exits (Linux only).

    Args:
        parent: process id of the parent, which may have exited already.
    """
    if _IS_LINUX:
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it exited before prctl took effect
            os._exit(1)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class _Guard:
    """Starts the command and ends its processes."""

    def __init__(self, pipe: int, command: list[str]) -> None:
        self._pipe = pipe
        self._status: int | None = None
        if _IS_LINUX:
            _prctl(_CHILD_SUBREAPER, 1)  # adopt orphans, so they can be found
        # Signal numbers arrive through a pipe, which select() can wait for: a signal
        # just before a blocking call would be missed otherwise.
        self._signals, wakeup = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        guard = os.getpid()
        self._first = os.fork()
        if self._first == 0:
            _become(command, guard)

    def run(self) -> int:
        """Wait for the command or the pipe; return the command's exit code."""
        while self._status is None and not self._is_to_stop():
            self._reap()
        self._end()
        return 0 if self._status is None else os.waitstatus_to_exitcode(self._status)

    def _is_to_stop(self) -> bool:
        ready, _, _ = select.select([self._pipe, self._signals], [], [])
        stopped = b""
        if self._signals in ready:
            stopped = bytes({*os.read(self._signals, 4096)} - {signal.SIGCHLD})
        return self._pipe in ready or bool(stopped)

    def _end(self) -> None:
        """End all processes that are left."""
        terminated: set[int] = set()
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
                # Listed again each time, as a process may still start others; SIGTERM
                # goes to each one once.
                for process in left:
                    if number == signal.SIGKILL or process not in terminated:
                        terminated.add(process)
                        with suppress(ProcessLookupError, PermissionError):
                            os.kill(process, number)
                time.sleep(_POLL_SECONDS)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._first:
                    self._status = found[1]


def _become(command: list[str], guard: int) -> None:
    """Replace a forked process by the command."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (
            *(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT),
            *(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores these
        ):
            signal.signal(number, signal.SIG_DFL)  # exec keeps ignored signals ignored
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
                # The program's name, in brackets, may contain any character.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in b"ZX":
                    children.setdefault(int(parent), []).append(int(name))
    found = [os.getpid()]
    for process in found:
        found += children.get(process, ())
    return found[1:]


def _group(first: int) -> list[int]:
    """Return the id of the process group for kill(), if the group exists."""
    try:
        os.killpg(first, 0)
    except (ProcessLookupError, PermissionError):
        return []
    return [-first]


def main() -> None:
    """Guard a command; exit with its exit code, or by its signal."""
    files = list(map(int, sys.argv[1].split(",")))
    for file in files:  # the command must not keep them open
        os.set_inheritable(file, False)
    code = _Guard(files[0], sys.argv[2:]).run()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no second core dump
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)


if __name__ == "__main__":
    main()
