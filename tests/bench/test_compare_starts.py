"""Initial weights: declared before the training, stored, and never mixed."""

from pathlib import Path

import pytest

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import RESULTS
from switch_ema.bench.results.store import ORIGIN, Results

TASK = """
from pathlib import Path
import torch
from switch_ema.bench.task import Batches, Metric, Recipe, Task

HERE = Path(__file__).parent

class Fitted(Task):
    metrics = (Metric(name="loss", higher_is_better=False),)
    recipe = Recipe(epochs=1)

    @classmethod
    def start_for(cls, options):
        return (HERE / "declared.txt").read_text()

    def initial_weights(self):
        return {}, (HERE / "start.txt").read_text()

    def model(self):
        return torch.nn.Linear(2, 1)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train_loader(self, epoch):
        x = torch.randn(8, 2, generator=torch.Generator().manual_seed(self.seed))
        return Batches((x,), 4, self.seed, epoch=epoch)

    def loss(self, model, batch):
        return model(batch[0]).square().mean()

    def evaluate(self, model):
        return {"loss": float(model.weight.square().sum())}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path


def start(folder: Path, declared: str, loaded: str) -> None:
    (folder / "declared.txt").write_text(declared)
    (folder / "start.txt").write_text(loaded)


def compare(folder: Path, seeds: int) -> Path:
    config = CompareConfig(
        tasks=(f"{folder / 'task.py'}:Fitted",), methods=("plain", "ema"), seeds=seeds
    )
    options = RunOptions(out=folder, name="run", executor="inline", device="cpu")
    found = run_comparison(config, options)
    if found.error is not None:
        raise found.error
    return folder / "run"


def test_the_start_is_stored_for_each_training(folder: Path) -> None:
    start(folder, "weights of a.pth", "weights of a.pth")
    results = Results(compare(folder, seeds=2) / RESULTS)
    cells = [f"{ORIGIN} of {cell}" for cell in results.statuses()]
    meta = results.meta()
    assert [meta[key] for key in cells] == ["weights of a.pth"] * 2


def test_other_weights_are_refused_before_anything_is_trained(folder: Path) -> None:
    start(folder, "weights of a.pth", "weights of a.pth")
    run = compare(folder, seeds=1)
    start(folder, "weights of b.pth", "weights of b.pth")
    with pytest.raises(UsageError, match=r"are: weights of a\.pth; here they would be"):
        compare(folder, seeds=2)
    assert len(Results(run / RESULTS).statuses()) == 1
    start(folder, "weights of a.pth", "weights of a.pth")
    compare(folder, seeds=2)


def test_a_training_that_starts_otherwise_fails(folder: Path) -> None:
    """As on another machine of a cluster, whose file of that name differs."""
    start(folder, "weights of a.pth", "weights of b.pth")
    with pytest.raises(UsageError, match=r"were: weights of b\.pth; not: weights of a"):
        compare(folder, seeds=1)


def test_tasks_that_declare_nothing_may_start_anyhow(folder: Path) -> None:
    start(folder, "", "weights of a.pth")
    compare(folder, seeds=1)
    start(folder, "", "weights of b.pth")
    compare(folder, seeds=2)
