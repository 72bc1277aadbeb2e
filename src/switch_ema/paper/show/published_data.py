"""The paper's rows without their data: networks from samples, steps from sizes."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from switch_ema.bench.loading import create_task
from switch_ema.bench.spec import parse_task
from switch_ema.bench.task import Task
from switch_ema.zoo.data.catalog import DATASETS
from switch_ema.zoo.data.sample_files import write_sample
from switch_ema.zoo.data.sources import FOLDER, find_files
from switch_ema.zoo.models.pretrained import NONE
from switch_ema.zoo.tasks.registry import needed_data

_FEWER = {"moving-mnist": {"tested": 8}}
"""Options for fewer examples, which change neither network nor optimizer."""
_Rule = Callable[[Any, int], int]
"""Batches per epoch, from a task and the number of its training examples."""


def task_of_sample(text: str, seed: int) -> Task:
    """Build a task on random data with the image sizes, classes and words of its own.

    Its network and optimizer are those of the real data. Weights are not loaded: those
    of FID's network are an empty file, and BERT has its published shape only.

    Args:
        text: task with options, at the paper's scale.
        seed: random seed.
    """
    spec = parse_task(text)
    options = {**spec.options, **_FEWER.get(spec.name, {})}
    weights = options.get("weights", NONE)
    if weights != NONE:
        options["weights"] = NONE
    with _data_in_samples() as folder:
        for name in published_data(text):
            if find_files(name) is None:
                write_sample(name, folder)
        if "inception" in options:
            (folder / str(options["inception"])).touch()
        task = create_task(str(replace(spec, options=options)), (seed,))
        if weights != NONE:
            _start_from(task, folder / str(weights))
        return task


def _start_from(task: Any, path: Path) -> None:
    """Let a task build its network and optimizer as for pre-trained weights."""
    if not hasattr(task, "start"):
        task.weights = path  # a detector, some of whose layers stay frozen
        return
    if not path.is_dir():
        from transformers import BertConfig

        BertConfig().save_pretrained(path)  # its defaults are those of BERT-Base
    task.start = replace(task.start, folder=str(path))


@cache
def _sample_folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory()


@contextmanager
def _data_in_samples() -> Iterator[Path]:
    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = _sample_folder().name
    try:
        yield Path(_sample_folder().name)
    finally:
        if before is None:
            del os.environ[FOLDER]
        else:
            os.environ[FOLDER] = before


def published_data(text: str) -> tuple[str, ...]:
    """Return the datasets that a task needs at the paper's scale."""
    spec = parse_task(text)
    return needed_data(spec.name, spec.options)


def published_batches(text: str, task: Task) -> tuple[int, int] | None:
    """Return the training examples of a task's data as published, and its batches.

    None if the task does not count examples: video clips are drawn without end.
    """
    name = parse_task(text).name
    rule = _RULES.get(name, _whole_batches)
    trained = [DATASETS[data].trained for data in published_data(text)]
    if name == "moving-mnist" or not trained or trained[0] is None:
        return None
    return trained[0], rule(task, trained[0])


def _whole_batches(task: Any, images: int) -> int:
    return images // int(task.batch)


def _passes(task: Any, images: int) -> int:
    return int(task.schedule.steps(images, task.batch))


def _pieces(task: Any, words: int) -> int:
    return -(-(words // int(task.batch) - 1) // int(task.scale.bptt))


def _sequences(task: Any, words: int) -> int:
    return -(-((words - 1) // int(task.scale.length)) // int(task.scale.batch))


def _texts(task: Any, texts: int) -> int:
    return -(-texts // int(task.scale.batch))


_RULES: dict[str, _Rule] = {
    "awd-lstm": _pieces,
    "bert-lm": _sequences,
    "bert-text": _texts,
    **dict.fromkeys(("retinanet", "mask-rcnn", "cascade-mask-rcnn", "yolox"), _passes),
}
"""Rules of tasks that do not drop an incomplete batch of images, by name."""
