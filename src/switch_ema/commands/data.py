"""`switch-ema data`: which data the tables need, what was found, and downloads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import listed, unknown
from switch_ema.commands.tables import narrow_table

if TYPE_CHECKING:
    from switch_ema.zoo.data.sources import DataSource


@dataclass(frozen=True)
class Data:
    """Show what data each table needs, and what was found where.

    Tables are those of the paper, at its scale.

    - switch-ema data
    - switch-ema data table-3 celeba
    - switch-ema data cifar100 --download
    """

    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="[TABLE|DATA ...]"),
    ] = ()
    """Tables, such as table-3, and datasets, such as celeba; default: everything."""
    download: bool = False
    """Download what is missing of these, with torchvision or datasets, into
    SWITCH_EMA_DATA or, if that is not set or not writable, ~/.cache/switch-ema; weights
    go into torch's or Hugging Face's cache."""

    def __call__(self, console: Console) -> None:
        """Show it."""
        if self.download:
            if not self.names:
                raise UsageError(
                    "--download needs the names of tables or datasets, such as "
                    "`switch-ema data cifar100 --download`."
                )
            _download(self.names, console)
        sources = _sources()
        if self.names:
            chosen = _chosen(self.names, sources)
            _print_details([sources[name] for name in chosen], console)
        else:
            _print_by_table(sources, console)


def _sources() -> "dict[str, DataSource]":
    """Return datasets and pre-trained weights by name."""
    from switch_ema.zoo.data.sources import catalogue
    from switch_ema.zoo.models.pretrained import weight_sources

    return {source.name: source for source in (*catalogue(), *weight_sources())}


def data_of_tables() -> dict[str, tuple[str, ...]]:
    """Return the data and weights of each table of the paper at its scale."""
    from switch_ema.paper import TABLES
    from switch_ema.zoo.models.pretrained import source_name
    from switch_ema.zoo.tasks.registry import needed_data, needed_weights

    found = {}
    for table in TABLES.values():
        data, weights = list[str](), list[str]()
        for setting in (row.setting("paper") for row in table.rows):
            for own in setting.variants.values() or ({},):
                options = {**setting.options, **own}
                data += needed_data(setting.task, options)
                weights += map(source_name, needed_weights(setting.task, options))
        found[table.name] = tuple(dict.fromkeys((*data, *weights)))
    return found


def _chosen(names: Sequence[str], sources: "dict[str, DataSource]") -> list[str]:
    """Return the datasets of tables and datasets by name, each once."""
    tables = data_of_tables()
    chosen: list[str] = []
    for name in names:
        if name not in tables and name not in sources:
            raise unknown("table or dataset", name, [*tables, *sources])
        chosen += tables.get(name, (name,))
    return list(dict.fromkeys(chosen))


def _download(names: Sequence[str], console: Console) -> None:
    from switch_ema.zoo.data.downloads import download_dataset
    from switch_ema.zoo.models.pretrained import WEIGHTS, download_weights, source_name

    sources, failed = _sources(), []
    weights = {source_name(name): name for name in WEIGHTS}
    for name in _chosen(names, sources):
        if sources[name].found:
            continue
        try:
            with console.status(f"Downloading {escape(name)}"):
                if name in weights:
                    folder = download_weights(weights[name])
                else:
                    folder = download_dataset(name)
        except UsageError as error:
            failed.append(name)
            console.print(escape(str(error)), style="red", soft_wrap=True)
        else:
            console.print(escape(f"Downloaded {name} to {folder}."), soft_wrap=True)
    if failed:
        raise UsageError(f"{listed(failed)} could not be downloaded; see above.")


def _print_by_table(sources: "dict[str, DataSource]", console: Console) -> None:
    """Print what each table needs, and where each dataset is."""
    needs = narrow_table("Data of the paper's tables, at its scale")
    needs.add_column("table", no_wrap=True)
    for column in ("found", "missing"):
        needs.add_column(column)
    for table, data in data_of_tables().items():
        missing = [name for name in data if not sources[name].found]
        found = (
            [name for name in data if name not in missing]
            if data
            else ["nothing needed"]
        )
        needs.add_row(table, *(escape(", ".join(part)) for part in (found, missing)))
    console.print(needs)
    console.print("\nWhere it is or, if it was not found, the publisher's page:\n")
    width = max(map(len, sources))
    for source in sources.values():
        where = source.where or source.page or source.how
        state = "found  " if source.found else "missing"
        # Not in a table, which would break paths and addresses.
        line = f"{source.name:{width}}  {state}  {where}"
        console.print(escape(line), soft_wrap=True, highlight=False)
    console.print()
    console.print("switch-ema data NAME shows which files are looked for.")


def _print_details(sources: "Sequence[DataSource]", console: Console) -> None:
    for source in sources:
        console.print(escape(source.name), style="bold")
        lines = [f"found: {source.where}" if source.found else f"missing: {source.how}"]
        if source.page:
            lines.append(f"publisher: {source.page}")
        for line in lines:
            console.print(escape(f"  {line}"), soft_wrap=True, highlight=False)
