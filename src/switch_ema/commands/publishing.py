"""Publishing: run folders to evidence files, and back before seeds are added."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from switch_ema.bench.plan.config import CompareConfig

_EVIDENCE = Path("evidence")
"""Default folder of evidence files."""


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """Values in text files, to be committed: docs and checks are made from them."""

    publish: bool = False
    """Write the values to a file in --evidence, to be committed. A published comparison
    whose run folder is gone continues from its file."""
    evidence: Path = _EVIDENCE
    """Folder of evidence files."""


def publish_run(run: Path, evidence: Path, console: Console) -> None:
    """Publish a run folder and print where."""
    from switch_ema.bench.results.evidence import publish

    target = _evidence_file(run, evidence)
    name = target.relative_to(evidence).with_suffix("").as_posix()
    publish(run, target, name)
    console.print(f"Published: {escape(str(target))}", soft_wrap=True)


def _evidence_file(run: Path, evidence: Path) -> Path:
    """Return the evidence file of a run folder.

    >>> _evidence_file(Path("runs/digits-a1b2c3"), Path("evidence")).as_posix()
    'evidence/digits-a1b2c3.jsonl'
    >>> run = Path("runs/reproduce-table-3/resnet18")
    >>> _evidence_file(run, Path("evidence")).as_posix()
    'evidence/table-3/resnet18.jsonl'
    """
    from switch_ema.bench.text import ENDING
    from switch_ema.paper.reproduce.plan import PREFIX

    run = run.absolute()
    name, parent = f"{run.name}{ENDING}", run.parent.name
    if parent.startswith(PREFIX):
        return evidence / parent.removeprefix(PREFIX) / name
    return evidence / name


def restore_run(
    folder: Path, evidence: Path, config: "CompareConfig", console: Console
) -> None:
    """Create a run folder that does not exist from its evidence file, if there is one.

    Raises:
        UsageError: the file holds a comparison with other settings.
    """
    from switch_ema.bench.errors import UsageError
    from switch_ema.bench.results.evidence import read_evidence, restore
    from switch_ema.bench.results.folder import RESULTS
    from switch_ema.bench.text import counted

    source = _evidence_file(folder, evidence)
    if not source.is_file():
        return
    found = read_evidence(source)
    if found.given.identity != config.identity:
        raise UsageError(
            f"{source} holds a comparison with other settings; delete it, or choose "
            "another --evidence folder."
        )
    if not (folder / RESULTS).is_file():
        restore(found, folder)
        trainings = counted(len(found.cells), "training")
        line = f"Continues from {trainings} in {source}."
        console.print(escape(line), soft_wrap=True)
