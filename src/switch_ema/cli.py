"""The command line, ``switch-ema COMMAND``.

Only the called command is imported: help and lists need no torch.
"""

import codecs
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any, NoReturn

from switch_ema import __version__
from switch_ema._extras import needed
from switch_ema._lazy import describe_named, load_named
from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import printable, unknown
from switch_ema.commands.output import open_console

COMMANDS: dict[str, str] = {
    "compare": "switch_ema.commands.compare:Compare",
    "report": "switch_ema.commands.compare:Report",
    "runs": "switch_ema.commands.compare:Runs",
    "judge": "switch_ema.commands.judge:Judge",
    "reproduce": "switch_ema.commands.reproduce:Reproduce",
    "figure": "switch_ema.commands.figure:FigureCommand",
    "landscape": "switch_ema.commands.landscape:Landscape",
    "boundary": "switch_ema.commands.boundary:BoundaryCommand",
    "theory": "switch_ema.commands.theory:Theory",
    "suggest": "switch_ema.commands.suggest:Suggest",
    "merge": "switch_ema.commands.merge:Merge",
    "inspect": "switch_ema.commands.inspect:Inspect",
    "extract": "switch_ema.commands.extract:Extract",
    "doctor": "switch_ema.commands.doctor:Doctor",
    "tasks": "switch_ema.commands.lists:Tasks",
    "methods": "switch_ema.commands.lists:Methods",
    "optimizers": "switch_ema.commands.lists:Optimizers",
    "data": "switch_ema.commands.data:Data",
}
_CLOSED_PIPE = 128 + 13
"""Exit code after SIGPIPE, as shells report it."""


_SPELLED = {
    "\N{PLUS-MINUS SIGN}": "+-",
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{EN DASH}": "-",
    "\N{MINUS SIGN}": "-",
    "\N{NO-BREAK SPACE}": " ",
}
"""Replacements for characters that the terminal's encoding lacks."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; usage errors print one sentence and exit with code 2."""
    _accept_any_terminal()
    try:
        with _stoppable(), _launched() as is_first:
            if is_first:
                _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()  # a closed pipe raises here, not at exit
    except UsageError as error:
        _fail(str(error))
    except BrokenPipeError:
        # Python would complain at exit about flushing its buffer to the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_CLOSED_PIPE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}.")
    except KeyboardInterrupt as stopped:
        print("switch-ema: stopped; run the same command to continue.", file=sys.stderr)
        number = stopped.args[0] if stopped.args else signal.SIGINT
        sys.exit(128 + number)


def _accept_any_terminal() -> None:
    """Replace characters that the terminal cannot encode instead of failing."""

    def spell(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        text = error.object[error.start : error.end]
        return "".join(_SPELLED.get(character, "?") for character in text), error.end

    codecs.register_error("switch-ema", spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="switch-ema")


@contextmanager
def _launched() -> Iterator[bool]:
    """Share the work between processes started by torchrun, if any.

    Yields whether this is rank 0, which runs the command; the other ranks serve its
    trainings.
    """
    from switch_ema.bench.execute.options import launched

    rank, size = launched()
    if size > 1:
        from switch_ema.bench.execute import torchrun as processes

        if rank > 0:
            processes.follow()
    try:
        yield rank == 0
    finally:
        if size > 1 and rank == 0:
            processes.dismiss()


def parse(arguments: Sequence[str]) -> Callable[..., Any]:
    """Parse a command line into a command, to be called with a console.

    ``--help`` and invalid arguments print and raise SystemExit.
    """
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    if name == "compare":
        from switch_ema.commands.compare import refuse_beside_config

        refuse_beside_config(arguments)
    command: type[Callable[..., Any]] = load_named(COMMANDS[name])
    prog = f"switch-ema {name}"
    with _wrapped() if {"-h", "--help"} & set(rest) else nullcontext():
        try:
            import tyro
        except ModuleNotFoundError:
            from switch_ema.commands.parsing import parse_plain

            return parse_plain(command, prog, rest)
        parsed: Callable[..., Any] = tyro.cli(
            command, prog=prog, args=rest, config=(tyro.conf.OmitArgPrefixes,)
        )
    return parsed


@contextmanager
def _wrapped() -> Iterator[None]:
    """Wrap the long lines of the help."""
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        # The width that tyro uses; a narrower one would divide its columns.
        width = shutil.get_terminal_size().columns
        for line in re.sub(r"\n{3,}", "\n\n", text.getvalue()).splitlines():
            indent = "  " if line.startswith("- ") else ""
            print(
                textwrap.fill(
                    line, width, subsequent_indent=indent, break_on_hyphens=False
                )
            )


def _run(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--version"]:
        print(f"switch-ema {__version__}")
        return
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return
    # With torch alone there is no NumPy, and torch warns when it is imported.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    with needed(None, "cli", user=arguments[0], error=UsageError):
        parse(arguments)(open_console())


def _help() -> str:
    """List the commands, one line each."""
    width = max(map(len, COMMANDS))
    lines = [f"  {n:{width}}  {describe_named(c)}" for n, c in COMMANDS.items()]
    return "\n".join(
        [
            "usage: switch-ema COMMAND [OPTIONS]     (COMMAND --help: its options)",
            "",
            "Weight averaging for PyTorch: does it help on your task?",
            "",
            *lines,
        ]
    )


@contextmanager
def _stoppable() -> Iterator[None]:
    """Make SIGTERM and SIGHUP stop a command like Ctrl-C: with a report.

    SIGUSR1 asks trainings to save their state; outside of them it does nothing.
    """

    def stop(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    def go_on(number: int, frame: object) -> None:
        return

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, stop) for number in _signals(names)}
    for number in _signals(["SIGUSR1"] if hasattr(signal, "SIGUSR1") else []):
        before[number] = signal.signal(number, go_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals(names: Sequence[str]) -> list[signal.Signals]:
    """Skip ignored signals, as under nohup."""
    numbers = [signal.Signals[name] for name in names]
    return [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]


def _fail(message: str) -> NoReturn:
    print(f"switch-ema: {printable(message)}", file=sys.stderr)
    sys.exit(2)
