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


def test_files_are_divided_in_their_order(folder, monkeypatch):
    monkeypatch.setattr(celeba, "TRAINING", 3)
    monkeypatch.setattr(celeba, "VALIDATION", 1)
    train, test = celeba.load_celeba()
    assert train.shape == (3, 3, 64, 64)
    red = torch.cat([train, test])[:, 0].float().mean((1, 2))
    assert torch.allclose(red, torch.tensor([0.0, 40, 80, 160, 200]), atol=4)


def test_too_few_files_are_refused(folder):
    with pytest.raises(UsageError, match=r"more than 182,637 .*got 6"):
        celeba.load_celeba()


def test_a_missing_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="celeba/img_align_celeba"):
        celeba.load_celeba()
