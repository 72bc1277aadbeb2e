"""A guard leaves no process of a command behind, whatever the command does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from switch_ema.bench.execute import guard

# The program as it is, with a shorter time between SIGTERM and SIGKILL.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(guard.__file__).parent)!r})
import guard
guard.GRACE_SECONDS = 0.5
guard.main()
"""

# Starts a child, one in a session of its own, and an orphan in another session; each
# notes its number once it is what it is.
FAMILY = """
import os, pathlib, signal, sys, time

def note(name):
    path = pathlib.Path(f"{name}.new")
    path.write_text(str(os.getpid()))
    path.rename(f"{name}.pid")

def stay(name):
    note(name)
    while True:
        time.sleep(60)

if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    stay("child")
if os.fork() == 0:
    os.setsid()
    stay("session")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        stay("orphan")
    os._exit(0)
if "ends" in sys.argv:
    while len(list(pathlib.Path().glob("*.pid"))) < 3:
        time.sleep(0.01)
    note("parent")
    sys.exit(3)
stay("parent")
"""


@pytest.fixture
def start(tmp_path):
    """Start a command with a guard; return the guard, and what closes its pipe."""
    (tmp_path / "family.py").write_text(FAMILY)

    def start(*command):
        ending, ours = os.pipe()
        program = [sys.executable, "-I", "-S", "-c", PROGRAM, str(ending), *command]
        process = subprocess.Popen(
            program, pass_fds=(ending,), cwd=tmp_path, stderr=subprocess.PIPE
        )
        os.close(ending)
        return process, ours

    yield start
    for number in family(tmp_path).values():
        if is_alive(number):  # a test has failed
            os.kill(number, signal.SIGKILL)


def family(folder):
    return {path.stem: int(path.read_text()) for path in folder.glob("*.pid")}


def wait_for(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(number):
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def survivors(folder):
    return [name for name, number in family(folder).items() if is_alive(number)]


@pytest.mark.parametrize("ears", ["hears", "deaf"])
def test_all_processes_end_when_the_pipe_closes(start, tmp_path, ears):
    process, ours = start(sys.executable, "-S", "family.py", ears)
    wait_for(lambda: len(family(tmp_path)) == 4)
    assert sorted(survivors(tmp_path)) == ["child", "orphan", "parent", "session"]
    os.close(ours)
    process.communicate(timeout=600)
    assert survivors(tmp_path) == []


def test_all_processes_end_when_the_guard_is_told_to(start, tmp_path):
    process, ours = start(sys.executable, "-S", "family.py")
    wait_for(lambda: len(family(tmp_path)) == 4)
    process.terminate()
    process.communicate(timeout=600)
    os.close(ours)
    assert survivors(tmp_path) == []


def test_what_a_command_leaves_behind_ends_with_it(start, tmp_path):
    process, ours = start(sys.executable, "-S", "family.py", "ends")
    process.communicate(timeout=600)
    os.close(ours)
    assert process.returncode == 3
    assert len(family(tmp_path)) == 4 and survivors(tmp_path) == []


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -SEGV $$"), -signal.SIGSEGV),
        (("sh", "-c", "kill -KILL $$"), -signal.SIGKILL),
        (("./no-program",), 127),
    ],
)
def test_a_guard_ends_as_its_command_does(start, command, code):
    process, ours = start(*command)
    _, errors = process.communicate(timeout=600)
    os.close(ours)
    assert process.returncode == code
    assert (b"./no-program cannot be started: No such file" in errors) == (code == 127)


def test_a_command_has_the_usual_signals_and_none_of_our_files(start):
    """Python ignores SIGPIPE, which programs rely on; a held pipe would never close."""
    process, ours = start(
        "sh", "-c", "ls /proc/self/fd >&2; grep SigIgn /proc/$$/status >&2"
    )
    _, errors = process.communicate(timeout=600)
    os.close(ours)
    *files, _, mask = errors.split()
    assert files == [b"0", b"1", b"2", b"3"]  # the last is the listing's own
    assert not int(mask, 16) & 1 << (signal.SIGPIPE - 1)
