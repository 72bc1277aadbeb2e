"""The command line: ``switch-ema compare`` and what goes with it."""

import sys
from collections.abc import Callable
from typing import Any

from switch_ema.bench.errors import UsageError

try:
    import tyro
    from rich.console import Console

    from switch_ema.commands.boundary import Boundary
    from switch_ema.commands.compare import Compare, Report, Runs, refuse_beside_config
    from switch_ema.commands.landscape import Landscape
    from switch_ema.commands.lists import Data, Methods, Optimizers, Tasks
    from switch_ema.commands.reproduce import Reproduce
    from switch_ema.commands.theory import Theory
except ModuleNotFoundError as error:  # pragma: no cover - a broken installation
    sys.exit(
        f"switch-ema: the command line needs {error.name}: "
        'pip install "switch-ema[bench]"'
    )

COMMANDS: dict[str, Callable[..., Any]] = {
    "compare": Compare,
    "report": Report,
    "runs": Runs,
    "reproduce": Reproduce,
    "landscape": Landscape,
    "boundary": Boundary,
    "theory": Theory,
    "tasks": Tasks,
    "methods": Methods,
    "optimizers": Optimizers,
    "data": Data,
}


def main(arguments: list[str] | None = None) -> None:
    """Run a command; the user's mistakes are one sentence and exit code 2."""
    try:
        refuse_beside_config(sys.argv[1:] if arguments is None else arguments)
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="switch-ema",
            description="Weight averaging for PyTorch: does it help on your task?",
            args=arguments,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.CascadeSubcommandArgs),
        )
        command(Console())
    except UsageError as error:
        _fail(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}.")
    except KeyboardInterrupt:
        print("switch-ema: stopped; the same command continues.", file=sys.stderr)
        sys.exit(130)


def _fail(message: str) -> None:
    print(f"switch-ema: {message}", file=sys.stderr)
    sys.exit(2)
