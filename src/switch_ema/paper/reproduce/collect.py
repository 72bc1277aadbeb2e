"""Loads stored results of the paper's rows."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.task_snapshot import retrained
from switch_ema.bench.results.evidence import open_results
from switch_ema.bench.results.folder import RESULTS
from switch_ema.bench.results.store import Results
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from switch_ema.paper.reproduce.plan import RowPlan, row_evidence, row_folder
from switch_ema.paper.tables.table import PaperRow, PaperTable


@dataclass(frozen=True, kw_only=True)
class ReproducedRow:
    """One row of a table with our results so far."""

    row: PaperRow
    task: TaskSummary
    config: CompareConfig


class StoredRows:
    """The stored rows of all tables in a folder, each summarised once.

    Args:
        out: parent folder of the tables' folders.
        scale: small or paper.
        evidence: folder of evidence files, which are read instead of the run folders.
    """

    def __init__(self, out: Path, scale: str, evidence: Path | None = None) -> None:
        self.out = out
        self.scale = scale
        self.evidence = evidence
        self._read: dict[
            Path, tuple[CompareConfig, list[TaskSummary]] | UsageError
        ] = {}

    def add(self, plan: RowPlan, summary: ComparisonSummary) -> None:
        """Add the summary of a row that was just trained."""
        self._read[plan.folder] = plan.config, summary.tasks

    def of(self, table: PaperTable) -> list[ReproducedRow]:
        """Return the rows of a table with a finished baseline."""
        found = []
        for row in table.rows:
            stored = self._of(table, row)
            if stored is None or isinstance(stored, UsageError):
                continue  # a damaged row must not hide the others
            config, tasks = stored
            for task in tasks:
                own = row.of_task(task.task)
                found.append(ReproducedRow(row=own, task=task, config=config))
        return found

    def problems(self, table: PaperTable) -> list[str]:
        """Report unreadable rows of a table, with the reason."""
        return [
            f"{row.title} is omitted: {stored}"
            for row in table.rows
            if isinstance(stored := self._of(table, row), UsageError)
        ]

    def _of(
        self, table: PaperTable, row: PaperRow
    ) -> tuple[CompareConfig, list[TaskSummary]] | UsageError | None:
        if self.evidence is None:
            source = row_folder(self.out, table, row, self.scale)
            there = (source / RESULTS).is_file()
        else:
            source = row_evidence(self.evidence, table, row, self.scale)
            there = source.is_file()
        if source not in self._read and there:
            try:
                config, results = open_results(source)
                with closing(results):
                    _refuse_older(row, config, results)
                    tasks = summarize(config, results, row.name).tasks
                self._read[source] = config, tasks
            except UsageError as error:
                self._read[source] = error
        return self._read.get(source)


def _refuse_older(row: PaperRow, config: CompareConfig, results: Results) -> None:
    """Refuse a row that was trained by an older recipe, to show only one of them."""
    # Until the recipes changed, SWA trained no longer than the other methods.
    short_swa = "swa" in config.methods and row.metrics[0].value("swa") is not None
    if short_swa or retrained(results.meta(), config.tasks):
        raise UsageError(
            "it was trained by an older recipe; delete its results and train it again."
        )
