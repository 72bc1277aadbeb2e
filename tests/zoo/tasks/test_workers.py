"""Two workers train each task of the zoo as one process does."""

import dataclasses
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.multiprocessing.spawn import start_processes

from switch_ema.bench.loading import create_task
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.sharding import Shard
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import train_as_worker
from switch_ema.bench.train.loop import train_cell

pytestmark = pytest.mark.zoo

FILE = Path(__file__).parent / "divided_tasks.py"
VIEWS = "size=20,batch=9,image_size=8"
IMAGES = "size=20,test_size=2,batch=9,image_size=32"
WORDS = "size=600,test_size=100,batch=9"


@dataclass(frozen=True)
class Case:
    task: str
    method: str = "plain"
    accumulate: int = 1

    def cell(self):
        config = CompareConfig(
            tasks=(f"{FILE}:{self.task}",),
            methods=(self.method,),
            seeds=1,
            epochs=2,
            accumulate=self.accumulate,
        )
        [cell] = make_plan(config)
        return cell


CASES = {
    "simclr": Case(f"SimCLR64:{VIEWS}", "swa"),
    "simclr, accumulated": Case(f"SimCLR64:{VIEWS}", accumulate=2),
    "barlow twins": Case(f"BarlowTwins64:{VIEWS}"),
    "byol": Case(f"BYOL64:{VIEWS}", "ema"),
    "moco v2": Case(f"MoCoV264:{VIEWS}", "switch-ema"),
    "moco v3": Case(f"MoCoV364:{VIEWS},network=resnet18", "ema", accumulate=2),
    "lstm": Case(f"LSTM64:{WORDS},bptt=20,hidden=4,dropout=0.0"),
    "awd-lstm": Case(f"AWDLSTM64:{WORDS}"),
    "retinanet": Case(f"RetinaNet64:{IMAGES}", "switch-ema"),
    "yolox": Case(f"YoloX64:{IMAGES}"),
    "a2mim": Case(f"A2MIM64:{VIEWS}"),
}


@pytest.mark.parametrize(
    "name",
    [
        *("lm:size=300,test_size=100", "awd-lstm:size=300,test_size=100"),
        *("retinanet", "yolox", "mask-rcnn", "cascade-mask-rcnn"),
        *("simclr", "moco-v2", "moco-v3", "byol", "barlow-twins"),
        "classification:size=40,test_size=10",
    ],
)
def test_a_loss_reaches_all_parameters_where_ddp_does_not_search(name):
    small = "" if ":" in name else ":size=20"
    task = create_task(f"{name}{small}", (0,))
    assert task.uses_all_parameters
    model = task.model().train()
    task.loss(model, next(iter(task.train_loader(0)))).backward()
    unused = [
        n for n, p in model.named_parameters() if p.requires_grad and p.grad is None
    ]
    assert unused == []


class Opened(list):
    """Examples, and how many of them were read."""

    count = 0

    def __getitem__(self, index):
        self.count += 1
        return super().__getitem__(index)


class Guesser(nn.Module):
    """Finds every box, more or less, with a score that depends on the image."""

    def __init__(self, examples):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.truths = {float((image / 255).sum()): truth for image, truth in examples}

    def forward(self, images):
        return [self.guess(image, self.truths[float(image.sum())]) for image in images]

    def guess(self, image, truth):
        boxes, score = truth["boxes"], float(image.mean())
        moved = boxes + torch.arange(len(boxes))[:, None] * (score * 100 % 4)
        scores = torch.full((len(boxes),), score)
        return {"boxes": moved, "labels": truth["labels"], "scores": scores}


def detected(shard):
    """Measure average precision with a shard; return it and the images read."""
    task = create_task("retinanet:size=20,test_size=47", (0,))
    examples = Opened(task.data.test[index] for index in range(47))
    task.data, task.shard = dataclasses.replace(task.data, test=examples), shard
    model = Guesser(examples)
    examples.count = 0
    return task.evaluate(model), examples.count


def test_workers_measure_average_precision_of_parts_of_the_images(by_two):
    values, read = by_two["detections"]
    whole, all_read = detected(Shard())
    assert values == whole and 10 < values["box AP"] < 90
    assert (read, all_read) == (40, 47)  # of three batches, two and one


def _work(rank, folder, port):
    """Train all cases as one of two workers, in one process group."""
    torch.set_num_threads(1)
    os.environ |= {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
        **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }
    results = {}
    for name, case in CASES.items():
        context = RunContext(folder / name, "cpu", workers=2)
        results[name] = train_as_worker(case.cell(), context)
    values = {name: (r.values, r.trained) for name, r in results.items() if r}
    values["detections"] = detected(Shard(rank, 2))
    torch.save(values, folder / f"values {rank}")


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """Values of all cases, trained by two workers."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    start_processes(_work, (folder, port), nprocs=2, start_method="spawn")
    return torch.load(folder / "values 0", weights_only=True)


@pytest.mark.parametrize("name", CASES)
def test_two_workers_train_as_one_process(name, by_two, tmp_path):
    case = CASES[name]
    alone = train_cell(case.cell(), RunContext(tmp_path, "cpu"))
    values, trained = by_two[name]
    assert alone.status == "done"
    [weights] = alone.values[case.method].values()
    [found] = values[case.method].values()
    assert [pytest.approx(one, rel=1e-9, nan_ok=True) for [one] in weights] == [
        one for [one] in found
    ]
    assert trained["Workers"].startswith("2, which took 5 + 4 of the 9 examples")
