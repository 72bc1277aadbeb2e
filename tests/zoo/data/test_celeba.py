"""CelebA's folder of aligned faces."""

import pytest
import torch
from PIL import Image

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import celeba


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    faces = tmp_path / "celeba" / "img_align_celeba"
    faces.mkdir(parents=True)
    for index in range(6):
        picture = Image.new("RGB", (178, 218), (40 * index, 0, 255))
        picture.save(faces / f"{index + 1:06}.jpg", quality=95)
    return faces


def write_parts(folder, parts, where=None):
    lines = [f"{number + 1:06}.jpg {part}\n" for number, part in enumerate(parts)]
    ((where or folder.parent) / celeba.PARTITION).write_text("".join(lines))


def test_files_are_divided_as_published(folder):
    write_parts(folder, "002120000")  # lists more files than there are
    train, test = celeba.load_celeba()
    assert train.shape == (3, 3, 64, 64)
    red = torch.cat([train, test])[:, 0].float().mean((1, 2))
    assert torch.allclose(red, torch.tensor([0.0, 40, 200, 80, 160]), atol=4)


def test_the_list_may_be_among_the_faces(folder):
    write_parts(folder, "000002", where=folder)
    assert len(celeba.load_celeba()[1]) == 1


def test_a_missing_list_is_named(folder):
    with pytest.raises(UsageError, match=r"must contain list_eval_partition\.txt"):
        celeba.load_celeba()


@pytest.mark.parametrize(
    ("parts", "message"),
    [("0003", "line 4: .* got '000004.jpg 3'"), ("000000", "none of .* for tests")],
)
def test_wrong_lists_are_refused(folder, parts, message):
    write_parts(folder, parts)
    with pytest.raises(UsageError, match=message):
        celeba.load_celeba()


def test_a_missing_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="celeba/img_align_celeba"):
        celeba.load_celeba()
