"""Kills, damage and hostile input: many attempts to break the promises.

``make chaos`` runs everything and prints one line per kind; docs/reliability.md has the
figures. The tests in this folder are a short form.
"""

import argparse
from itertools import chain

import torch

from tests.chaos import bench, checkpoints, library


def main() -> None:
    """Print one line per kind; the exit code is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the usual number")
    parser.add_argument("--only", choices=("bench", "checkpoints", "library"))
    options = parser.parse_args()
    torch.set_num_threads(1)

    def times(number: int) -> int:
        return max(2, int(number * options.scale))

    parts = {
        "checkpoints": checkpoints.everything,
        "library": library.everything,
        "bench": bench.everything,
    }
    chosen = [parts[options.only]] if options.only else list(parts.values())
    broken = 0
    for outcome in chain.from_iterable(part(times) for part in chosen):
        print(outcome, flush=True)
        broken += outcome.broken
    raise SystemExit(broken > 0)


if __name__ == "__main__":
    main()
