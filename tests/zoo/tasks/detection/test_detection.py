"""Options, schedules, splits, trivial values and pictures of the detectors."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.models import resnet50

from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.schedules import create_schedule
from switch_ema.bench.task import CONTROL_EPOCHS
from switch_ema.zoo.data.sample_files import write_sample
from switch_ema.zoo.tasks.detection.mask_rcnn import CascadeMaskRCNN, MaskRCNN
from switch_ema.zoo.tasks.detection.measure import average_precision
from switch_ema.zoo.tasks.detection.retinanet import RetinaNet
from switch_ema.zoo.tasks.detection.yolox import YoloX


def whole(box: list[float], score: float | None = None) -> dict[str, torch.Tensor]:
    found = {"boxes": torch.tensor([box]), "labels": torch.tensor([1])}
    if score is None:
        return {**found, "iscrowd": torch.tensor([0])}
    return {**found, "scores": torch.tensor([score])}


def test_average_precision_of_known_detections() -> None:
    truth = whole([0.0, 0, 10, 10])
    exact = average_precision([(whole([0.0, 0, 10, 10], 0.9), truth)], masks=False)
    assert exact == {"box AP": 100.0, "box AP50": 100.0}
    # An IoU of 0.64 counts at the thresholds 0.5, 0.55 and 0.6, three of ten.
    moved = average_precision([(whole([0.0, 0, 8, 8], 0.9), truth)], masks=False)
    assert moved["box AP"] == pytest.approx(30.0, abs=0.01)
    assert moved["box AP50"] == pytest.approx(100.0, abs=0.01)


def test_nothing_to_detect_is_nan() -> None:
    empty = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.int64),
        "iscrowd": torch.zeros(0, dtype=torch.int64),
    }
    measured = average_precision([(whole([0.0, 0, 9, 9], 0.9), empty)], masks=False)
    assert all(math.isnan(value) for value in measured.values())


def test_validation_is_a_fifth_of_the_training_images() -> None:
    test = RetinaNet(0, size=20, test_size=5)
    split = RetinaNet(0, size=20, test_size=5, split="validation")
    assert (len(split.data.train), len(split.data.test)) == (16, 4)
    images = [split.data.train[i][0] for i in range(16)]
    images += [split.data.test[i][0] for i in range(4)]
    own = [test.data.train[i][0] for i in range(20)]
    assert all(any(torch.equal(a, b) for b in own) for a in images)


def test_schedules_of_the_paper() -> None:
    recipe = CascadeMaskRCNN.recipe_for({"scale": "paper", "schedule": "9x"})
    assert recipe.epochs == 36
    assert recipe.methods["ema"] == {"decay": 0.9999}
    assert recipe.methods["switch-ema"] == {"decay": 0.999}
    halved = MaskRCNN.recipe_for({"scale": "paper", "batch": 8})
    assert (halved.epochs, halved.accumulate) == (24, 2)
    assert YoloX.recipe_for({"scale": "paper"}).epochs == 300


def test_an_epoch_of_3x_is_three_passes() -> None:
    task = CascadeMaskRCNN(0, size=8, test_size=2, batch=4)
    assert len(task.train_loader(0)) == 6


def test_small_averages_span_the_paper_s_share() -> None:
    """Switch EMA's of an epoch, EMA's of the whole training."""
    recipe = RetinaNet.recipe_for({"size": 160, "batch": 8})
    steps, theirs = 160 // 8, 117_266 // 16
    kept = (1 - recipe.methods["switch-ema"]["decay"]) * steps
    assert kept == pytest.approx((1 - 0.999) * theirs, rel=0.01)
    window = (1 - recipe.methods["ema"]["decay"]) * steps * recipe.epochs
    assert window == pytest.approx((1 - 0.9999) * theirs * 24, rel=0.01)


def test_workers_do_not_change_the_batches() -> None:
    one = RetinaNet(0, size=8, test_size=2, batch=4).train_loader(1)
    two = RetinaNet(0, size=8, test_size=2, batch=4, workers=1).train_loader(1)
    for (images, targets), (others, other_targets) in zip(one, two, strict=True):
        assert all(map(torch.equal, images, others))
        for target, other in zip(targets, other_targets, strict=True):
            assert torch.equal(target["boxes"], other["boxes"])


def test_trivial_values_and_pictures() -> None:
    task = MaskRCNN(0, size=20, test_size=8)
    trivial = task.trivial()
    assert set(trivial) == {metric.name for metric in task.metrics}
    assert all(0 <= value < 10 for value in trivial.values())
    pictures = task.samples(task.model().eval())
    colours = "circle red, square green, triangle blue"
    assert set(pictures) == {f"truth ({colours})", "detected"}
    for picture in pictures.values():
        assert picture.shape == (5, 3, 256, 256)
        assert picture.min() >= 0 and picture.max() <= 1
    assert task.initial_weights() == ({}, "from scratch")


def test_mosaic_ends_before_the_training_does() -> None:
    task = YoloX(0, size=8, test_size=2, batch=4)
    for epoch, plain in ((0, False), (task.mosaic_epochs, True)):
        for offset in (0, CONTROL_EPOCHS):
            task.train_loader(epoch + offset)
            assert task.use_l1 is plain


def test_masks_are_needed_and_problems_are_said(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number in range(5):
        Image.new("RGB", (40, 40)).save(tmp_path / "images" / f"{number}.png")
    content = {
        "images": [{"id": n, "file_name": f"{n}.png"} for n in range(6)],
        "categories": [{"id": 1, "name": "cell"}],
        "annotations": [
            {"id": n, "image_id": n, "category_id": 1, "bbox": [5, 5, 20, 20]}
            for n in range(5)
        ],
    }
    for name in ("train.json", "val.json"):
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UsageError, match="boxes without masks"):
        MaskRCNN(0, dataset=str(tmp_path))
    with pytest.warns(UserWarning, match="1 image missing, left out"):
        task = RetinaNet(0, dataset=str(tmp_path), batch=2)
    assert task.data.categories == ("cell",)
    images, _ = next(iter(task.train_loader(0)))
    assert images[0].shape == (3, 128, 128)


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "5x"},
        {"backbone": "vgg"},
        {"scale": "large"},
        {"dataset": "/no/such/folder"},
        {"weights": "x.pth"},
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, str]) -> None:
    with pytest.raises((UsageError, ValueError)) as caught:
        RetinaNet(0, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """COCO in its published layout, and empty caches."""
    for name in ("TORCH_HOME", "XDG_CACHE_HOME", "SWITCH_EMA_DATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    write_sample("coco", tmp_path, count=2)
    return tmp_path


@pytest.mark.parametrize("backbone", ["resnet50", "swin-t"])
def test_the_paper_s_backbones_ask_for_imagenet_weights(
    folder: Path, backbone: str
) -> None:
    options = {"scale": "paper", "dataset": "coco", "backbone": backbone}
    for ask in (RetinaNet.start_for, lambda given: RetinaNet(0, **given)):
        with pytest.raises(
            UsageError, match=r"ImageNet weights .* not found"
        ) as caught:
            ask(options)
        assert f"switch-ema data weights-{backbone} --download" in str(caught.value)
        assert "--from-scratch" in str(caught.value)
    assert RetinaNet.start_for({**options, "weights": "none"}) == "from scratch"
    assert YoloX.start_for({"scale": "paper"}) == "from scratch"
    assert RetinaNet.start_for({"backbone": backbone}) == "from scratch"


def test_weights_are_found_in_torch_s_cache(folder: Path) -> None:
    classifier = resnet50()
    path = folder / "hub" / "checkpoints" / "resnet50-0676ba61.pth"
    path.parent.mkdir(parents=True)
    torch.save(classifier.state_dict(), path)
    options = {"scale": "paper", "dataset": "coco"}
    task = RetinaNet(0, **options)  # type: ignore[arg-type]
    weights, origin = task.initial_weights()
    assert torch.equal(
        weights["backbone.body.layer1.0.conv1.weight"],
        classifier.layer1[0].conv1.weight,  # type: ignore[index, union-attr]
    )
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    described = "pre-trained weights of the backbone (resnet50-0676ba61.pth, SHA-256 "
    assert origin == f"{described}{checksum})" == RetinaNet.start_for(options)
    moved = path.rename(folder / "mine.pth")
    given = {**options, "weights": str(moved)}
    assert RetinaNet.start_for(given) == origin.replace(path.name, "mine.pth")


def test_yolox_warms_up_quadratically_and_holds_its_last_rate() -> None:
    """0.01 from epoch 5, 5% of it from epoch 285 on, and halfway the mean of both."""
    recipe = YoloX.recipe_for({"scale": "paper", "schedule": "yolox-300"})
    assert (recipe.epochs, recipe.warmup_epochs) == (300, 5)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.01)
    made = create_schedule(
        recipe.schedule, optimizer, total_steps=3000, warmup_steps=50
    )
    rates = []
    for _ in range(3000):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    assert rates[24] == pytest.approx(0.01 * (25 / 50) ** 2)
    assert rates[49] == rates[50] == pytest.approx(0.01)
    assert rates[(50 + 2850) // 2] == pytest.approx(0.01 * 1.05 / 2)
    assert rates[2849] > rates[2850] == rates[2999] == pytest.approx(0.0005)
