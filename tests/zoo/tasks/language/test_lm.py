"""The language model: its state between pieces, its text and its vocabulary."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch

from switch_ema.bench.loaders import CPU, feed
from switch_ema.bench.loading import create_task
from switch_ema.bench.train.position import EpochPosition, remaining_batches
from switch_ema.zoo.data.texts import _topics, load_texts
from switch_ema.zoo.tasks.language.pieces import Pieces
from tests.zoo.tasks.helpers import seeded_model, small_task, train


def test_pieces_cover_the_text_in_order():
    columns = torch.arange(44).view(4, 11).t()
    pieces = Pieces(columns, 4)
    read = list(pieces)
    assert len(pieces) == len(read) == 3
    assert torch.cat([words for words, *_ in read]).equal(columns[:-1])
    assert torch.cat([following for _, following, *_ in read]).equal(columns[1:])


def test_state_goes_from_piece_to_piece_without_gradients():
    task = small_task("lm")
    model = seeded_model(task).eval()
    batches = []
    for batch in task.train_loader(0):
        task.loss(model, batch)
        batches.append(batch)
    assert batches[0][2].state is None
    for before, after in pairwise(batches):
        assert before[3] is after[2]
        assert not before[3].state[0].requires_grad
    whole = torch.cat([words for words, *_ in batches])
    _, (hidden, cell) = model(whole, None)
    torch.testing.assert_close(batches[-1][3].state[0], hidden)
    torch.testing.assert_close(batches[-1][3].state[1], cell)


def test_asking_twice_changes_nothing():
    """Optimizers such as SAM evaluate the loss of a batch more than once."""
    task = small_task("lm")
    model = seeded_model(task).eval()
    once = [task.loss(model, batch).item() for batch in task.train_loader(0)]
    twice = [
        (task.loss(model, batch).item(), task.loss(model, batch).item())
        for batch in task.train_loader(0)
    ]
    assert [first for first, _ in twice] == [second for _, second in twice] == once


def test_resumes_between_epochs():
    def finish(task, state):
        model = task.model()
        model.load_state_dict(state)
        return list(train(task, 1, model, first=1)[0].parameters())

    task = small_task("lm")
    half, _ = train(task, 1)
    state = {name: value.clone() for name, value in half.state_dict().items()}
    same_process = finish(task, state)
    new_process = finish(small_task("lm"), state)
    for one, other in zip(same_process, new_process, strict=True):
        assert torch.equal(one, other)


def test_weights_are_tied():
    model = seeded_model(small_task("lm"))
    assert model.classifier.weight is model.embedding.weight


def test_perplexity_of_a_uniform_guess_is_the_vocabulary():
    task = small_task("lm")
    model = seeded_model(task).eval()
    torch.nn.init.zeros_(model.embedding.weight)
    measured = task.evaluate(model)["perplexity"]
    assert measured == pytest.approx(len(task.words), rel=1e-4)
    model.classifier.bias.data[0] = math.inf
    assert task.evaluate(model)["perplexity"] != measured


def test_topics_do_not_repeat_paragraphs():
    def paragraphs(words):
        return set(" ".join(words).split(" <eos>"))

    texts = load_texts("pydoc", 0)
    longer = {p for p in paragraphs(texts.test) if len(p.split()) > 1}
    assert longer
    assert not longer & paragraphs(texts.train)
    everything = sum(map(len, _topics()))
    assert len(texts.train) + len(texts.test) == everything
    assert 0.1 < len(texts.test) / everything < 0.3


def test_validation_is_the_end_of_the_training_text():
    test = create_task("lm:size=5000,vocabulary=100", (0,))
    validation = create_task("lm:size=5000,vocabulary=100", (0,), split="validation")
    assert len(test.train) == 5000
    assert len(validation.train) == 4000
    assert len(validation.test) == 1000

    def spell(task, text):
        words = list(task.words)
        return [words[index] for index in text.tolist()]

    whole, held = spell(test, test.train)[4000:], spell(validation, validation.test)
    # Words that are rare in the shorter text are unknown to it.
    known = [(a, b) for a, b in zip(whole, held, strict=True) if "<unk>" not in (a, b)]
    assert len(known) > 500
    assert all(a == b for a, b in known)


def test_vocabulary_is_of_the_training_text():
    task = create_task("lm:size=5000,vocabulary=50", (0,))
    assert len(task.words) == 52
    assert task.train.max() == 51
    assert task.test.max() <= 51


def test_resuming_within_an_epoch_continues_with_the_state_of_the_text():
    task = small_task("lm")
    # No dropout, so that a loss depends on the words and the state alone.
    network = seeded_model(task).eval()

    def losses(loader, position):
        draw = partial(feed, loader, CPU)
        batches = remaining_batches(loader, position, CPU, draw)
        return [task.loss(network, batch).item() for batch in batches]

    whole = losses(task.train_loader(0), EpochPosition())
    loader = task.train_loader(0)
    for _, batch in zip(range(2), loader, strict=False):
        task.loss(network, batch)
    stored = EpochPosition(0, batches=2).state(loader, CPU)
    assert losses(task.train_loader(0), EpochPosition(0, **stored)) == whole[2:]
    without = EpochPosition(0, **{**stored, "carried": None})
    assert losses(task.train_loader(0), without) != whole[2:]
