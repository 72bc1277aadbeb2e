"""Loaders give a process only what it needs, with the values of the whole."""

import pytest
import torch

from switch_ema.bench.loaders import CPU, Batches, BatchPart, feed, is_placed


def loader(count=23, size=8, **options):
    numbers = torch.arange(count)
    return Batches((numbers, 10 * numbers), size, seed=3, epoch=1, **options)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 64])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_parts_of_a_batch_are_all_of_it(count, ranks, paired):
    parts = [BatchPart(rank, ranks).of(count, paired=paired) for rank in range(ranks)]
    assert torch.cat(parts).sort().values.tolist() == list(range(count))
    if paired:
        for part in parts:
            assert (count - 1 - part.flip(0)).tolist() == part.tolist()


def test_parts_of_each_batch_together_are_the_whole_batch():
    whole = list(feed(loader(), CPU))
    parts = [list(feed(loader(), CPU, part=BatchPart(rank, 3))) for rank in range(3)]
    for index, batch in enumerate(whole):
        for column, tensor in enumerate(batch):
            joined = torch.cat([part[index][column] for part in parts])
            assert torch.equal(joined, tensor)


def test_an_epoch_starts_in_the_middle():
    whole = list(feed(loader(), CPU))
    rest = list(feed(loader(), CPU, start=1))
    assert len(rest) == len(whole) - 1
    assert all(map(torch.equal, rest[0], whole[1]))


def test_batches_know_their_sizes():
    batches = loader()
    sizes = [len(x) for x, _ in batches]
    assert sizes == [batches.examples(index) for index in range(len(batches))]
    assert sizes == [8, 8, 7]


class _Doubled(Batches):
    """A user's loader that is older than ``batches``."""

    def __iter__(self):
        for (x,) in super().__iter__():
            yield (2 * x,)


def test_a_subclass_that_defines_only_iter_keeps_its_values():
    doubled = _Doubled((torch.arange(10),), 4, seed=0, epoch=0)
    assert is_placed(loader())
    assert not is_placed(doubled)
    (first,) = next(feed(doubled, CPU))
    assert torch.equal(first, 2 * doubled.order[:4])


def test_a_list_is_a_loader_too():
    batches = [{"x": torch.arange(6), "y": (torch.arange(6),)} for _ in range(3)]
    found = list(feed(batches, CPU, start=1, part=BatchPart(1, 2)))
    assert len(found) == 2
    assert found[0]["x"].tolist() == found[0]["y"][0].tolist() == [3, 4, 5]
