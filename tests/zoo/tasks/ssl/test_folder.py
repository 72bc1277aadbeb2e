"""Pre-training on a folder of images, as on ImageNet, from the files to the probe."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.vision import ImageFiles
from switch_ema.zoo.tasks.metrics import predict
from switch_ema.zoo.tasks.ssl import pretraining

COLOURS = {"apple": (190, 30, 40), "lime": (60, 190, 30)}
COUNTS = {"train": 6, "val": 3}


@pytest.fixture
def folder(tmp_path):
    """Two classes of JPEG images that differ in colour, of several sizes."""
    draw = np.random.default_rng(0)
    for part, count in COUNTS.items():
        for name, colour in COLOURS.items():
            place = tmp_path / "fruit" / part / name
            place.mkdir(parents=True)
            for index in range(count):
                noise = draw.integers(0, 60, (40 + index, 50, 3))
                pixels = (noise + colour).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.jpeg", quality=95)
    return tmp_path / "fruit"


def spec(name, folder, **options):
    given = {"dataset": "imagenet", "batch": 4, "workers": 0, **options}
    text = ",".join(f"{key}={value}" for key, value in given.items())
    return f"{name}:{text},folder={folder}"


def trained(task, folder, methods, epochs=1):
    config = CompareConfig(
        tasks=(task,), methods=methods, seeds=1, epochs=epochs, warmup_epochs=0
    )
    values = {}
    for cell in make_plan(config):
        result = train_cell(cell, RunContext(folder / "run", "cpu"))
        assert result.status == "done", result.message
        values |= result.values
    return values


@pytest.mark.parametrize("name", ["simclr", "byol", "moco-v3", "simmim", "mae"])
def test_small_networks_train_from_files_to_the_probe(name, folder):
    methods = ("plain", "ema", "switch-ema")
    values = trained(spec(name, folder), folder, methods)
    assert list(values) == list(methods)
    for metrics in values.values():
        ((accuracy,),), ((knn,),) = metrics["accuracy"], metrics["knn"]
        assert 0 <= accuracy <= 100 and 0 <= knn <= 100


def test_the_papers_methods_train_and_are_fine_tuned(folder, monkeypatch):
    monkeypatch.setitem(pretraining.FINE_TUNED, "paper", 1)
    options = {"scale": "paper", "network": "deit-t", "image_size": 32}
    task = spec("mae", folder, protocol="fine-tune", **options)
    values = trained(task, folder, ("plain",))
    assert math.isfinite(values["plain"]["accuracy"][0][0])


def test_the_protocol_is_due_every_so_many_epochs(folder):
    values = trained(spec("byol", folder, protocol_every=2), folder, ("plain",), 4)
    accuracies = [value for (value,) in values["plain"]["accuracy"]]
    # After epochs 2 and 4, and after epoch 3, where SWA would end at 1.25 times 2.
    assert [math.isnan(value) for value in accuracies] == [True, False, False, False]
    assert all(math.isfinite(value) for (value,) in values["plain"]["knn"])


@pytest.mark.parametrize("name", ["byol", "simmim"])
def test_batches_have_the_papers_resolution_and_files_are_read_lazily(
    name, folder, monkeypatch
):
    read, opened = ImageFiles.open, []

    def counted(self, index):
        opened.append(self.paths[index])
        return read(self, index)

    monkeypatch.setattr(ImageFiles, "open", counted)
    task = create_task(spec(name, folder, scale="paper"), (0,))
    loader = task.train_loader(0)
    assert opened == [] and len(loader) == 3
    first, second = next(iter(loader))
    assert first.shape == (4, 3, 224, 224)
    assert len(opened) == 4 and all("/train/" in path for path in opened)
    if name == "byol":
        assert second.shape == first.shape and not torch.equal(first, second)
    else:
        assert second.dtype == torch.bool and second.shape == (4, 14 * 14)
        # 60% of 7 by 7 squares of 32 pixels, each of 2 by 2 patches.
        assert second.sum(1).tolist() == [4 * 30] * 4


@pytest.mark.parametrize("name", ["byol", "simmim"])
def test_views_do_not_depend_on_the_number_of_workers(name, folder):
    def batches(workers):
        text = spec(name, folder, scale="paper", image_size=32, workers=workers)
        torch.manual_seed(workers)
        return list(create_task(text, (0,)).train_loader(1))

    expected = batches(0)
    for workers in (1, 2):
        for one, other in zip(expected, batches(workers), strict=True):
            assert all(map(torch.equal, one, other))


def test_an_evaluation_sees_the_middle_of_every_file_in_order(folder):
    task = create_task(spec("byol", folder), (0,))
    model = torch.nn.Flatten()
    model.weight = torch.nn.Parameter(torch.zeros(1))  # says on which device it is
    with torch.no_grad():
        seen = predict(model, task._shown(task.x_eval)).view(-1, 3, 32, 32)
    assert len(seen) == 6
    for image, path in zip(seen, task.x_eval.paths, strict=True):
        file = Image.open(path).convert("RGB")
        bicubic = functional.InterpolationMode.BICUBIC
        middle = functional.center_crop(functional.resize(file, [36], bicubic), [32])
        pixels = torch.from_numpy(np.array(middle)).permute(2, 0, 1).float() / 255
        mean, deviation = (
            torch.tensor(values).view(3, 1, 1)
            for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        )
        torch.testing.assert_close(image, (pixels - mean) / deviation)


def test_the_split_for_tuning_holds_files_of_the_training_part_out(folder):
    task = create_task(spec("byol", folder), (0,), split="validation")
    assert (len(task.x), len(task.x_eval)) == (10, 2)
    assert all("/train/" in path for path in task.x_eval.paths)
    assert not set(task.x.paths) & set(task.x_eval.paths)


def test_a_wrong_layout_says_what_was_expected_and_what_was_found(folder):
    (folder / "val").rename(folder / "test")
    with pytest.raises(UsageError) as caught:
        create_task(spec("byol", folder), (0,))
    message = str(caught.value)
    assert "must contain train/<class>/<image> and val/<class>/<image>" in message
    assert "found train/ with 2 folders and 0 files and no val/" in message
    assert "also test" in message


def test_a_file_that_is_no_image_is_named(folder):
    (folder / "val" / "lime" / "0.jpeg").write_bytes(b"not an image")
    task = create_task(spec("byol", folder), (0,))
    message = r"lime/0\.jpeg cannot be read: cannot identify image file; repair or rem"
    with pytest.raises(UsageError, match=message):
        list(task._shown(task.x_eval))


def test_without_a_folder_the_data_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv(sources.FOLDER, str(tmp_path))
    message = r"imagenet was not found .* not imagenet/\{train,val\}"
    with pytest.raises(UsageError, match=message):
        create_task("byol:scale=paper,dataset=imagenet", (0,))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("byol:folder=/data", "folder applies to the dataset imagenet, not to digits"),
        ("byol:protocol_every=0", "protocol_every must be"),
        ("byol:workers=-1", "workers must be"),
    ],
)
def test_bad_options(task, message):
    with pytest.raises(UsageError, match=message):
        create_task(task, (0,))
