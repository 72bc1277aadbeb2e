import json
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from switch_ema.bench.broken_files import BrokenFile
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import coco
from switch_ema.zoo.data.coco import open_folder
from switch_ema.zoo.data.detection import load_detection

SQUARE = [2, 3, 4, 5]
POLYGON = [[2, 3, 6, 3, 6, 8, 2, 8]]
RUNS = {"size": [20, 30], "counts": [2 * 20 + 3, 5, 15, 5, 15, 5, 15, 5, 492]}
"""The same rectangle, column by column."""


def annotation(number: int, **changes: Any) -> dict[str, Any]:
    usual = {
        "id": number,
        "image_id": 1,
        "category_id": 7,
        "bbox": SQUARE,
        "segmentation": POLYGON,
        "iscrowd": 0,
    }
    return {**usual, **changes}


def write(
    folder: Path, annotations: list[dict[str, Any]], images: int = 2, declared: int = 2
) -> Path:
    """Write a dataset whose training and test images are the same."""
    (folder / "images").mkdir(parents=True)
    for number in range(1, images + 1):
        Image.new("RGB", (30, 20), (number, 0, 0)).save(
            folder / "images" / f"{number}.png"
        )
    content = {
        "images": [
            {"id": n, "file_name": f"{n}.png", "width": 30, "height": 20}
            for n in range(1, declared + 1)
        ],
        "categories": [{"id": 9, "name": "dog"}, {"id": 7, "name": "cat"}],
        "annotations": annotations,
    }
    for name in ("train.json", "val.json"):
        (folder / name).write_text(json.dumps(content))
    return folder


def test_boxes_labels_and_masks_are_read(tmp_path: Path) -> None:
    both = [annotation(1), annotation(2, category_id=9, segmentation=RUNS)]
    train, _ = open_folder(write(tmp_path / "coco", both))
    image, target = train[0]
    assert image.shape == (3, 20, 30) and int(image[0, 0, 0]) == 1
    assert train.categories == ("cat", "dog")
    assert target["boxes"].tolist() == [[2, 3, 6, 8]] * 2
    assert target["labels"].tolist() == [1, 2]
    expected = torch.zeros(20, 30, dtype=torch.uint8)
    expected[3:8, 2:6] = 1
    assert torch.equal(target["masks"], torch.stack([expected] * 2))
    assert not train.problems


def test_masks_that_nobody_uses_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "coco", [annotation(1)])
    monkeypatch.setattr(coco, "_decode", None)
    data = load_detection(str(folder), 0, masks=False)
    assert data.has_masks
    for examples in (data.train, data.test):
        assert sorted(examples[0][1]) == ["boxes", "iscrowd", "labels"]


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "coco", [annotation(1)])
    path = folder / "images" / "1.png"
    Image.effect_noise((30, 20), 50).save(path)
    path.write_bytes(path.read_bytes()[:200])
    train, _ = open_folder(folder)
    with pytest.raises(BrokenFile, match=r"images/1.png cannot be read: .*truncated"):
        train[0]


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"bbox": [2, 3, 0, 5]}, "with an empty or inverted box"),
        ({"bbox": [9, 3, -4, 5]}, "with an empty or inverted box"),
        ({"bbox": [99, 3, 4, 5]}, "with an empty or inverted box"),
        ({"bbox": None}, "with an empty or inverted box"),
        ({"category_id": 3}, "of an unknown category"),
        ({"image_id": 55}, "of an unknown image"),
        (
            {"segmentation": {"size": [5, 5], "counts": [25]}},
            "whose mask size differs from the image",
        ),
    ],
)
def test_bad_annotations_are_counted_and_named(
    tmp_path: Path, bad: dict[str, Any], sentence: str
) -> None:
    folder = write(tmp_path / "coco", [annotation(1), annotation(42, **bad)])
    train, _ = open_folder(folder)
    assert len(train[0][1]["labels"]) == 1
    assert train.problems == (f"train.json: 1 annotation {sentence} left out (42).",)


def test_missing_and_broken_images_are_counted_and_the_rest_is_used(
    tmp_path: Path,
) -> None:
    folder = write(
        tmp_path / "coco",
        [annotation(n, image_id=n) for n in range(1, 6)],
        images=3,
        declared=5,
    )
    (folder / "images" / "2.png").write_text("no image")
    Image.new("RGB", (9, 9)).save(folder / "images" / "3.png")
    train, _ = open_folder(folder)
    assert len(train) == 1
    assert train.problems == (
        "train.json: 1 image that cannot be read, left out (2.png).",
        "train.json: 1 image whose size differs from the annotations, left out "
        "(3.png).",
        "train.json: 2 images missing, left out (4.png, 5.png).",
    )


def test_images_in_a_tar_file_with_or_without_their_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "coco", [annotation(1)])
    with tarfile.open(folder / "images.tar", "w") as archive:
        archive.add(folder / "images", "images")
    expected = open_folder(folder)[0][1][0]
    for path in (folder / "images").iterdir():
        path.unlink()
    (folder / "images").rmdir()
    train, _ = open_folder(folder)
    assert len(train) == 2 and not train.problems
    assert torch.equal(train[1][0], expected)


def test_a_crowd_is_kept_and_does_not_count(tmp_path: Path) -> None:
    crowd = [annotation(1, iscrowd=1, segmentation=RUNS), annotation(2, image_id=2)]
    train, _ = open_folder(write(tmp_path / "coco", crowd))
    assert [train.count(index) for index in (0, 1)] == [0, 1]
    assert train[0][1]["iscrowd"].tolist() == [1]


def test_the_layout_of_coco_itself(tmp_path: Path) -> None:
    folder = write(tmp_path / "coco", [annotation(1)])
    (folder / "annotations").mkdir()
    for part, other in (("train", "train2017"), ("val", "val2017")):
        target = folder / "annotations" / f"instances_{other}.json"
        (folder / f"{part}.json").rename(target)
        (folder / other).mkdir()
        for path in (folder / "images").iterdir():
            (folder / other / path.name).write_bytes(path.read_bytes())
    train, test = open_folder(folder)
    assert len(train) == len(test) == 2


def _cut(path: Path, count: int) -> None:
    path.write_text(path.read_text()[:-count])


def write_lists(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "val.json").read_text())
    (folder / "val.json").write_text(json.dumps({**content, **changes}))


def test_annotations_are_never_all_in_memory_as_objects(tmp_path: Path) -> None:
    outline = [[round(2 + 0.37 * n % 20, 2) for n in range(200)]]
    many = [
        annotation(number, image_id=1 + number % 2, segmentation=outline)
        for number in range(2000)
    ]
    folder = write(tmp_path / "coco", many)
    del many
    size = (folder / "train.json").stat().st_size
    for masks, copies in ((True, 4.5), (False, 2.5)):
        tracemalloc.start()
        train, _ = open_folder(folder, masks=masks)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert train.count(0) == 1000
        # The text, and what is kept of it and of the other file; objects take more.
        assert peak < copies * size
        del train


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: folder.rename(folder.parent / "away"), "is not a folder"),
        (lambda folder: (folder / "val.json").unlink(), "must contain annotations/"),
        (
            lambda folder: (folder / "val.json").write_text("{"),
            "cannot be read as JSON",
        ),
        (lambda folder: (folder / "val.json").write_text("[]"), "must have the lists"),
        (lambda folder: _cut(folder / "val.json", 9), "cannot be read as JSON"),
        (lambda folder: write_lists(folder, images={}), "must have the lists"),
        (lambda folder: write_lists(folder, images=[{}]), "must have id and file_name"),
        (lambda folder: write_lists(folder, categories=[]), "has no categories"),
        (lambda folder: write_lists(folder, annotations=[3]), "must be an object, got"),
    ],
)
def test_a_wrong_path_is_one_sentence(
    tmp_path: Path, change: Any, sentence: str
) -> None:
    folder = write(tmp_path / "coco", [annotation(1)])
    change(folder)
    with pytest.raises(UsageError, match=sentence) as caught:
        open_folder(folder)
    assert "\n" not in str(caught.value)


def test_images_are_scaled_with_their_boxes_and_masks(tmp_path: Path) -> None:
    folder = write(tmp_path / "coco", [annotation(1), annotation(2, image_id=2)])
    data = load_detection(str(folder), 0, longest_side=60)
    image, target = data.train[0]
    assert image.shape == (3, 40, 60)
    assert target["boxes"].tolist() == [[4, 6, 12, 16]]
    assert target["masks"].sum() == 8 * 10
