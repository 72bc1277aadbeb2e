"""Small versions of the tasks, and the plainest training loop."""

import atexit
import tempfile
from pathlib import Path

import torch

from switch_ema.bench.loading import create_task
from tests.zoo.tasks.regression_files import write_cells, write_faces

_FOLDER = tempfile.TemporaryDirectory()
atexit.register(_FOLDER.cleanup)
FILES = Path(_FOLDER.name)
write_faces(FILES / "faces")
write_cells(FILES / "cells")

SMALL = {
    "noisy-digits": "noisy-digits:size=300",
    "digits": "digits:size=300",
    "circles": "circles",
    "moons": "moons",
    "mnist1d": "mnist1d:size=300,batch=20",
    "images": "images:size=200,test_size=100",
    "classification": "classification:network=vgg13-bn,size=100,test_size=50",
    "rotation": "rotation:size=200",
    "rcf-mnist": "rcf-mnist:dataset=digits,version=c-mixup,size=200,test_size=50",
    "age": f"age:folder={FILES / 'faces'},network=resnet18,batch=4",
    "cell-count": f"cell-count:folder={FILES / 'cells'},network=resnet18,batch=8",
    "simclr": "simclr:size=100,batch=20",
    "moco-v2": "moco-v2:size=400,batch=25",
    "byol": "byol:size=100,batch=20",
    "barlow-twins": "barlow-twins:size=100,batch=20",
    "moco-v3": "moco-v3:size=200,batch=20,network=resnet18",
    "simmim": "simmim:size=100,batch=20,network=deit-t",
    "a2mim": "a2mim:size=100,batch=20,network=deit-t",
    "mae": "mae:size=100,batch=20,network=deit-t",
    "retinanet": "retinanet:size=20,test_size=6,batch=4",
    "mask-rcnn": "mask-rcnn:size=20,test_size=6,batch=4",
    "cascade-mask-rcnn": "cascade-mask-rcnn:size=8,test_size=6,batch=4",
    "yolox": "yolox:size=20,test_size=6,batch=4",
    "ddpm": "ddpm:size=64,batch=16,samples=20,sampling_steps=3",
    "moving-mnist": "moving-mnist:clips=16,tested=4,batch=8",
    "lm": "lm:size=4000,test_size=2000,hidden=16,batch=8,bptt=20",
    "awd-lstm": "awd-lstm:dataset=pydoc,size=4000,test_size=2000,batch=8",
    "bert-text": "bert-text:dataset=pydoc,size=100,test_size=50",
    "bert-lm": "bert-lm:dataset=pydoc,size=3000,test_size=1000,vocabulary=200",
}
"""Every registered task, in a second or so."""


def small_task(name, seed=0, **keywords):
    return create_task(SMALL[name], (seed,), **keywords)


def seeded_model(task):
    torch.manual_seed(task.seed)
    return task.model()


def train(task, epochs, model=None, averager=None, first=0):
    """Train plainly; return the model and the mean loss of each epoch."""
    model = seeded_model(task) if model is None else model
    optimizer = task.optimizer(model)
    average = None if averager is None else averager(model, optimizer)
    losses = []
    for epoch in range(first, first + epochs):
        torch.manual_seed(epoch)
        model.train()
        total = 0.0
        loader = task.train_loader(epoch)
        for batch in loader:
            loss = task.loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item()
        losses.append(total / len(loader))
        if average is not None:
            average.end_epoch()
    model.eval()
    return model, losses


@torch.no_grad()
def measure(task, model):
    return task.evaluate(model.eval())


def tensors(batch):
    """List the tensors of a batch, however deep they lie."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict):
        batch = batch.values()
    elif not isinstance(batch, (list, tuple)):
        return []
    return [tensor for part in batch for tensor in tensors(part)]


def same(first, second):
    """Compare two lists of tensors exactly."""
    pairs = zip(first, second, strict=True)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)
