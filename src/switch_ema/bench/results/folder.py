"""The folder of a run: the names of its files, its owner and its lock."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.facts import FACTS, dump_facts
from switch_ema.bench.results.environment import describe_environment
from switch_ema.bench.results.store import Results

RESULTS, REPORT, CONFIG = "results.sqlite", "report.html", "config.json"
_TUNED = "tuned config"


def open_run(folder: Path) -> tuple[CompareConfig, Results]:
    """Open a finished or unfinished run; its configuration is the tuned one, if any."""
    results = Results(folder / RESULTS)
    meta = results.meta()
    stored = meta.get(_TUNED) or meta.get("config")
    if stored is None:
        raise UsageError(f"{folder} has no configuration; was it ever started?")
    return CompareConfig.from_json(stored, str(folder)), results


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"{folder} is in use by another process; wait for it or choose --name."
        ) from None
    try:
        yield
    finally:
        lock.release()


def claim(results: Results, config: CompareConfig, folder: Path) -> None:
    """Make a new run folder this comparison's; refuse that of another comparison."""
    stored = results.meta()
    if stored.get("config", config.to_json()) != config.to_json():
        raise UsageError(
            f"{folder} holds a comparison with other settings; choose another --name, "
            "or delete it."
        )
    if stored.get("sources", config.sources) != config.sources:
        raise UsageError(
            f"the file of a task has changed since {folder} was begun, and results of "
            "both must not be mixed; choose another --name, or delete it."
        )
    results.set_meta("config", config.to_json())
    results.set_meta("sources", config.sources)
    results.set_meta(FACTS, dump_facts(config.tasks))
    write_atomically(folder / CONFIG, config.to_json())
    for key, value in describe_environment().items():
        results.set_meta(f"environment.{key}", value)


def note_tuned(results: Results, config: CompareConfig) -> None:
    """Store what tuning has made of the configuration."""
    results.set_meta(_TUNED, config.to_json())
