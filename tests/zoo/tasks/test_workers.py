"""Two workers train each task of the zoo as one process does."""

import dataclasses
import os
import socket
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.multiprocessing.spawn import start_processes

from switch_ema.bench.loading import create_task
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.sharding import Shard
from switch_ema.bench.train import evaluation, loop
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import train_as_worker
from tests.zoo.tasks.regression_files import write_faces

pytestmark = pytest.mark.zoo

FILE = Path(__file__).parent / "divided_tasks.py"
VIEWS = "size=20,batch=9,image_size=8"
IMAGES = "size=20,test_size=2,batch=9,image_size=32"
FILES = "dataset=imagenet,network=deit-t,workers=0,size=20,image_size=16,folder=IMAGES"
WORDS = "size=600,test_size=100,batch=9"


@dataclass(frozen=True)
class Case:
    task: str
    method: str = "plain"
    accumulate: int = 1

    def cell(self, images):
        """Plan the case; ``images`` is the folder of its image files."""
        config = CompareConfig(
            tasks=(f"{FILE}:{self.task.replace('IMAGES', str(images))}",),
            methods=(self.method,),
            seeds=1,
            epochs=2,
            accumulate=self.accumulate,
        )
        [cell] = make_plan(config)
        return cell


CASES = {
    "simclr": Case(f"SimCLR64:{VIEWS}", "swa"),
    "barlow twins": Case(f"BarlowTwins64:{VIEWS}"),
    "byol": Case(f"BYOL64:{VIEWS}", "ema"),
    "moco v2": Case(f"MoCoV264:{VIEWS}", "switch-ema"),
    "moco v3": Case(f"MoCoV364:{VIEWS},network=resnet18", "ema", accumulate=2),
    "awd-lstm": Case(f"AWDLSTM64:{WORDS}"),
    "retinanet": Case(f"RetinaNet64:{IMAGES}", "switch-ema"),
    "yolox": Case(f"YoloX64:{IMAGES}"),
    "files": Case(f"Files64:{FILES}", "switch-ema"),
    "views of files": Case(f"FileViews64:{FILES},batch=9"),
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
    values, read = by_two[1][0]["detections"]
    whole, all_read = detected(Shard())
    assert values == whole and 10 < values["box AP"] < 90
    assert (read, all_read) == (40, 47)  # of three batches, two and one


EVALUATED = {
    "bert-text": "bert-text:dataset=pydoc,size=60,test_size=250",
    "bert-lm": "bert-lm:dataset=pydoc,size=3000,test_size=1300,vocabulary=200",
    "ddpm": "ddpm:size=64,samples=25,sampling_steps=2",
    "moving-mnist": "moving-mnist:clips=8,tested=7,side=16",
    "rcf-mnist": "rcf-mnist:dataset=digits,version=c-mixup,size=40,test_size=350",
    "age": "age:folder=FACES,network=resnet18,batch=4",
    "simclr": "simclr:size=301,batch=20",
    "simclr from files": f"simclr:{FILES.replace('deit-t', 'resnet18')},batch=9",
}


@torch.no_grad()
def evaluated(name, shard, folder):
    """Evaluate an untrained network; return its values and the examples it computed."""
    text = EVALUATED[name].replace("FACES", str(folder / "faces"))
    task = create_task(text.replace("IMAGES", str(folder / "images")), (0,))
    task.shard = shard
    if name == "ddpm":
        task.part = 10  # images at once, for more than one part
    if name == "moving-mnist":
        task.evaluated_at_once = 2
    torch.manual_seed(0)
    model, computed = task.model().eval(), []
    for index, weights in enumerate(model.parameters()):  # some networks begin at 0
        weights.add_(0.01 * torch.randn(weights.shape, generator=seeded(index)))
    network = task.encoder_of(model) if "simclr" in name else model
    network.register_forward_pre_hook(lambda _, inputs: computed.append(len(inputs[0])))
    return task.evaluate(model), sum(computed)


def seeded(number):
    return torch.Generator().manual_seed(number)


@pytest.mark.parametrize("name", EVALUATED)
def test_two_workers_evaluate_as_one_process(name, by_two):
    folder, ranks = by_two
    alone, examples = evaluated(name, Shard(), folder)
    (first, by_first), (second, by_second) = (rank["evaluated"][name] for rank in ranks)
    assert first == second
    close = 1e-6 if name == "ddpm" else 1e-12  # sums of features are rounded
    assert first == pytest.approx(alone, rel=close)
    assert by_first + by_second == examples
    assert 0 < by_second <= examples / 2


@contextmanager
def opened_files():
    """Count how often each image file is opened by this process."""
    counts, before = Counter(), Image.open

    def counted(path):
        counts[path] += 1
        return before(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "open", counted)
        yield counts


def _work(rank, folder, port):
    """Train all cases as one of two workers, in one process group."""
    torch.set_num_threads(1)
    os.environ |= {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
        **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }
    values = {}
    for name, case in CASES.items():
        context = RunContext(folder / name, "cpu", workers=2)
        with opened_files() as opened:
            result = train_as_worker(case.cell(folder / "images"), context)
        trained = result and (result.values, result.trained)
        values[name] = trained, dict(opened)
    values["detections"] = detected(Shard(rank, 2))
    values["evaluated"] = {
        name: evaluated(name, Shard(rank, 2), folder) for name in EVALUATED
    }
    torch.save(values, folder / f"values {rank}")
    torch.distributed.barrier()
    # A regular exit can abort: torch may keep gloo's threads (docs/distributed.md).
    os._exit(0)


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """Values of all cases, trained by two workers."""
    folder = tmp_path_factory.mktemp("two")
    draw = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 5)):
        for label in ("apple", "lime"):
            place = folder / "images" / part / label
            place.mkdir(parents=True)
            for index in range(count):
                pixels = draw.integers(0, 255, (20, 24, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")
    write_faces(folder / "faces")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    start_processes(_work, (folder, port), nprocs=2, start_method="spawn")
    return folder, [
        torch.load(folder / f"values {rank}", weights_only=True) for rank in range(2)
    ]


@pytest.mark.parametrize("name", CASES)
def test_two_workers_train_as_one_process(name, by_two, tmp_path, monkeypatch):
    # Workers do not measure it, and it would open files again.
    monkeypatch.setattr(evaluation, "has_training_loss", lambda task: False)
    folder, ranks = by_two
    case, ((values, trained), _) = CASES[name], ranks[0][name]
    with opened_files() as opened:
        alone = loop.train_cell(
            case.cell(folder / "images"), RunContext(tmp_path, "cpu")
        )
    assert alone.status == "done"
    for metric, epochs in alone.values[case.method].items():
        found = [one for [one] in values[case.method][metric]]
        expected = [one for [one] in epochs]
        assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)
    # Pairs of images that are blended stay together.
    divided = "6 + 4 of the 10" if name == "files" else "5 + 4 of the 9"
    assert trained["Workers"].startswith(f"2, which took {divided} examples")
    # Each worker opens its part of the files, and both together what one process does.
    parts = [Counter(rank[name][1]) for rank in ranks]
    assert parts[0] + parts[1] == opened
    if "files" in name:
        tested = sum(count for path, count in opened.items() if "/val/" in path)
        steps, first, second = 4, *map(int, divided.split(" of ")[0].split(" + "))
        shares = [steps * own + tested // 2 for own in (first, second)]
        assert [part.total() for part in parts] == shares
