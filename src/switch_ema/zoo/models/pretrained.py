"""Pre-trained weights: where they are looked for, and how to get them.

Weights are files by their publisher's name, in the folder of data or in torch's cache,
or repositories in Hugging Face's cache. Nothing is downloaded during a training.
"""

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data.sources import FOLDER, DataSource, data_folder, need

NONE = "none"
"""Value of the option ``weights`` for random weights."""
_FILES = ("model.safetensors", "pytorch_model.bin")
"""Weights in a repository of the Hugging Face Hub, in order of preference."""


@dataclass(frozen=True, kw_only=True)
class PretrainedWeights:
    """Published weights."""

    title: str
    """For results, such as "ImageNet weights of ResNet-50"."""
    page: str
    """Their address, or the publisher's page."""
    file: str = ""
    """Name of the file; its part after the last dash is how its SHA-256 begins."""
    repositories: tuple[str, ...] = ()
    """Names on the Hugging Face Hub, if that publishes them."""


WEIGHTS: dict[str, PretrainedWeights] = {
    "resnet50": PretrainedWeights(
        title="ImageNet weights of ResNet-50",
        page="https://download.pytorch.org/models/resnet50-0676ba61.pth",
        file="resnet50-0676ba61.pth",
    ),
    "swin-t": PretrainedWeights(
        title="ImageNet weights of Swin-T",
        page="https://huggingface.co/timm/swin_tiny_patch4_window7_224.ms_in1k",
        repositories=("timm/swin_tiny_patch4_window7_224.ms_in1k",),
    ),
    "bert-base-uncased": PretrainedWeights(
        title="pre-trained weights of bert-base-uncased",
        page="https://huggingface.co/google-bert/bert-base-uncased",
        repositories=("google-bert/bert-base-uncased", "bert-base-uncased"),
    ),
    "inception": PretrainedWeights(
        title="FID's Inception network",
        page=(
            "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/"
            "weights-inception-2015-12-05-6726825d.pth"
        ),
        file="weights-inception-2015-12-05-6726825d.pth",
    ),
}
"""Weights that rows of the paper start from or measure with, by name."""


def _find(name: str) -> Path | None:
    """Return the file of published weights, if it is on this machine."""
    weights = WEIGHTS[name]
    if weights.file:
        return find_weights_file(weights.file)
    if find_spec("huggingface_hub") is None:  # comes with timm and transformers
        return None
    cached = need("huggingface_hub").try_to_load_from_cache
    for repository in weights.repositories:
        for file in _FILES:
            found = cached(repository, file)
            if isinstance(found, str):
                return Path(found)
    return None


def find_weights_file(name: str) -> Path | None:
    """Find a file by path, or by name in the folder of data and in torch's cache."""
    folder = data_folder()
    places = [Path(name).expanduser(), *([folder / name] if folder else [])]
    return next((p for p in (*places, _torch_cache() / name) if p.is_file()), None)


def weights_in(folder: Path) -> Path | None:
    """Return the file of weights in a folder of transformers, if there is one."""
    return next((p for p in (folder / name for name in _FILES) if p.is_file()), None)


def required_weights(name: str) -> Path:
    """Return the file of published weights; refuse to go on without it."""
    found = _find(name)
    if found is None:
        raise UsageError(
            f"the {WEIGHTS[name].title} were not found: run `switch-ema data "
            f"{source_name(name)} --download`, pass their path as the option weights, "
            "or train from random weights with weights=none (reproduce: "
            "--from-scratch)."
        )
    return found


def described_file(title: str, path: Path) -> str:
    """Describe weights by title, file and the beginning of the file's SHA-256.

    Two machines may have files of the same name with other weights: the checksum tells
    them apart.
    """
    return f"{title} ({path.name}, SHA-256 {_checksum(path)[:8]})"


@lru_cache(maxsize=8)
def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_name(name: str) -> str:
    """Return the name of weights in lists of data.

    >>> source_name("swin-t")
    'weights-swin-t'
    """
    return f"weights-{name}"


def weight_sources() -> list[DataSource]:
    """List the weights like datasets: whether found, where, and how to get them."""
    sources = []
    for name, weights in WEIGHTS.items():
        path = _find(name)
        how = f"run `switch-ema data {source_name(name)} --download`"
        if weights.file:
            how = f"set {FOLDER} to a folder with {weights.file}, or {how}"
        where = "" if path is None else str(path)
        found = path is not None
        sources.append(DataSource(source_name(name), found, where, how, weights.page))
    return sources


def download_weights(name: str) -> Path:
    """Download published weights into torch's or Hugging Face's cache."""
    weights = WEIGHTS[name]
    try:
        if weights.file:
            target = _torch_cache() / weights.file
            target.parent.mkdir(parents=True, exist_ok=True)
            checksum = Path(weights.file).stem.rpartition("-")[2]
            need("torch.hub").download_url_to_file(
                weights.page, str(target), hash_prefix=checksum
            )
            return target
        repository, *_ = weights.repositories
        wanted = [_FILES[0], "*.json", "*.txt"]
        fetch = need("huggingface_hub").snapshot_download
        return Path(fetch(repository, allow_patterns=wanted))
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UsageError(
            f"downloading {weights.title} from {weights.page} failed: {reason}."
        ) from None


def _torch_cache() -> Path:
    """Return the folder of torch's downloads, as torch.hub finds it."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("TORCH_HOME") or f"{cache}/torch"
    return Path(home).expanduser() / "hub" / "checkpoints"
