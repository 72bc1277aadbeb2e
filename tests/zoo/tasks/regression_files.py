"""Small files in the formats that the tasks on images with numbers read."""

import io
import json
import tarfile

import numpy as np
from PIL import Image


def write_faces(folder, count=24, side=20):
    """Grey faces that grow brighter with age, and the CSV of their usual layout."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["age,path,split"]
    generator = np.random.default_rng(0)
    for index in range(count):
        age = int(generator.integers(1, 100))
        split = ("train", "train", "train", "val", "test")[index % 5]
        noise = generator.integers(0, 20, (side, side, 3))
        Image.fromarray((2 * age + noise).astype(np.uint8)).save(
            folder / f"{index}.png"
        )
        lines.append(f"{age},{index}.png,{split}")
    (folder / "agedb.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_cells(folder, train=16, test=4):
    """Images of 64 by 48 pixels with dark squares on them, in the format of COCO."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    number = 0
    with tarfile.open(folder / "images.tar", "w") as archive:
        for part, count in (("train", train), ("val", test)):
            images, annotations = [], []
            for _ in range(count):
                number += 1
                pixels = generator.integers(200, 256, (48, 64, 3)).astype(np.uint8)
                for left, top in generator.integers(0, 40, (generator.integers(9), 2)):
                    pixels[top : top + 6, left : left + 6] = 30
                    box = [int(left), int(top), 6, 6]
                    annotations.append(_annotation(len(annotations), number, box))
                _add(archive, f"images/{number}.png", pixels)
                name = f"{number}.png"
                images.append(
                    {"id": number, "file_name": name, "width": 64, "height": 48}
                )
            content = {
                "images": images,
                "annotations": annotations,
                "categories": [{"id": 1, "name": "RBC"}, {"id": 2, "name": "WBC"}],
            }
            (folder / f"{part}.json").write_text(json.dumps(content))
    return folder


def _annotation(number, image, box):
    return {
        "id": number + 1000 * image,
        "image_id": image,
        "category_id": 1,
        "bbox": box,
        "area": 36,
        "iscrowd": 0,
    }


def _add(archive, name, pixels):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    info = tarfile.TarInfo(name)
    info.size = content.tell()
    content.seek(0)
    archive.addfile(info, content)
