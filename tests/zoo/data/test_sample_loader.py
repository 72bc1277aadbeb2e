"""Workers read examples one by one, always with the same result."""

import gc
import os
import random

import numpy as np
import pytest
import torch

from switch_ema.bench.broken_files import BrokenFile, BrokenFiles
from switch_ema.bench.errors import UsageError
from switch_ema.bench.loaders import BatchPart
from switch_ema.zoo.data import sample_loader
from switch_ema.zoo.data.sample_loader import EpochOrder, SampleLoader, count_workers


class Drawn:
    """Examples that draw from every global generator; some cannot be read."""

    def __init__(self, count=200, broken=()):
        self.count, self.broken, self.read = count, broken, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        if index in self.broken:
            raise BrokenFile(f"{index}.jpg", "image file is truncated")
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
        return index, torch.tensor(drawn, dtype=torch.double)


def order(count=200, size=150, epoch=0):
    generator = torch.Generator().manual_seed(epoch)
    indices = torch.randperm(count, generator=generator)
    return EpochOrder(
        indices, torch.randint(2**31, (count,), generator=generator), size
    )


def batches(loader, chosen, **arguments):
    return [
        tuple(torch.cat(column) for column in zip(*chunks, strict=True))
        for chunks in loader.chunks(chosen, **arguments)
    ]


def same(first, second):
    return len(first) == len(second) and all(
        torch.equal(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def test_batches_are_the_same_for_every_number_of_workers():
    whole = batches(SampleLoader(Drawn(), workers=0), order())
    assert [len(indices) for indices, _ in whole] == [150, 50]
    assert torch.equal(torch.cat([indices for indices, _ in whole]), order().indices)
    for workers in (1, 2, 5):
        assert same(whole, batches(SampleLoader(Drawn(), workers=workers), order()))


def test_workers_live_through_all_epochs():
    loader = SampleLoader(Whereabouts(), workers=2)
    first, second = (
        {int(process) for (found,) in batches(loader, order()) for process in found}
        for _ in range(2)
    )
    assert first == second
    assert os.getpid() not in first


class Whereabouts(Drawn):
    """Examples that say which process read them."""

    def __getitem__(self, index):
        return (os.getpid(),)


def test_an_epoch_that_starts_in_the_middle_reads_nothing_before():
    samples, chosen = Drawn(), order(size=40)
    whole = batches(SampleLoader(Drawn(), workers=0), chosen)
    rest = batches(SampleLoader(samples, workers=0), chosen, start=3)
    assert same(whole[3:], rest)
    assert samples.read == chosen.indices[120:].tolist()


@pytest.mark.parametrize("paired", [False, True])
def test_each_process_reads_only_its_part(paired):
    chosen, read = order(size=40), []
    whole = batches(SampleLoader(Drawn(), workers=0), chosen)
    for rank in range(2):
        samples, part = Drawn(), BatchPart(rank, 2)
        loader = SampleLoader(samples, workers=0)
        own = batches(loader, chosen, part=part, paired=paired)
        positions = part.of(40, paired=paired)
        expected = [tuple(column[positions] for column in batch) for batch in whole]
        assert same(own, expected)
        read += samples.read
    assert sorted(read) == list(range(200))


def test_examples_read_here_leave_the_random_numbers_alone():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    expected = torch.rand(()), random.random(), np.random.rand()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    batches(SampleLoader(Drawn(), workers=0), order())
    assert (torch.rand(()), random.random(), np.random.rand()) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_two_epochs_may_be_read_at_once(workers):
    loader = SampleLoader(Drawn(), workers=workers)
    first, second = order(epoch=0, size=60), order(epoch=1, size=60)
    expected = [batches(loader, first), batches(loader, second)]
    found = [], []
    for pair in zip(loader.chunks(first), loader.chunks(second), strict=True):
        for chunks, into in zip(pair, found, strict=True):
            into.append(tuple(map(torch.cat, zip(*chunks, strict=True))))
    assert all(map(same, expected, found))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_named(workers):
    loader = SampleLoader(Drawn(broken=[17]), workers=workers)
    with pytest.raises(UsageError, match=r"^17.jpg cannot be read: image file is trun"):
        batches(loader, order())


@pytest.mark.parametrize("workers", [0, 2])
def test_some_broken_files_are_replaced(workers):
    broken = BrokenFiles(most=2)
    samples = Drawn(broken=[17, 18])
    found = batches(SampleLoader(samples, workers=workers, broken=broken), order())
    indices = torch.cat([indices for indices, _ in found]).tolist()
    assert indices.count(19) == 3
    assert len(indices) == 200
    assert sorted(broken.found) == ["17.jpg", "18.jpg"]
    assert "2 broken files: " in broken.describe()


def test_one_more_broken_file_is_too_many():
    broken = BrokenFiles(most=1)
    loader = SampleLoader(Drawn(broken=[17, 60]), workers=2, broken=broken)
    with pytest.raises(UsageError, match=r"^2 files .* more than --skip-broken 1; the"):
        batches(loader, order())


def test_evaluation_leaves_broken_files_out():
    samples, broken = Drawn(broken=[17, 18]), BrokenFiles(most=2)
    loader = SampleLoader(samples, workers=2, broken=broken, replaces=False)
    found = batches(loader, order())
    indices = torch.cat([indices for indices, _ in found]).tolist()
    assert sorted(indices) == [index for index in range(200) if index not in (17, 18)]


def test_workers_by_default(monkeypatch):
    assert count_workers(3) == 3
    assert count_workers(None, large=False) == 0
    for cores, workers in ((96, 16), (12, 12), (1, 1)):
        monkeypatch.setattr(sample_loader, "usable_cores", lambda cores=cores: cores)
        assert count_workers(None) == workers


def test_a_daemonic_process_says_why_it_has_no_workers(monkeypatch):
    class Daemon:
        daemon = True

    monkeypatch.setattr(sample_loader, "current_process", Daemon)
    with pytest.warns(UserWarning, match="this is a daemonic process, which cannot"):
        assert count_workers(None) == 0


class Closing:
    """Garbage that notes the process that collects it, as a loader closes pipes."""

    def __init__(self, path):
        self.itself, self.path = self, path

    def __del__(self):
        with open(self.path, "a") as file:
            file.write(f"{os.getpid()}\n")


class Collecting(Drawn):
    """Examples whose process collects its garbage, as any process may."""

    def __getitem__(self, index):
        gc.collect()
        return super().__getitem__(index)


def test_workers_do_not_collect_garbage_of_their_parent(tmp_path):
    path = tmp_path / "collected"
    gc.disable()
    try:
        Closing(path)
        loader = SampleLoader(Collecting(8), workers=2)
        held = loader.chunks(order(8, 4))
        next(held)
    finally:
        gc.enable()
    del held, loader
    gc.collect()
    assert path.read_text() == f"{os.getpid()}\n"
