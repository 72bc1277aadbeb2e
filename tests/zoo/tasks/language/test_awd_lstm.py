"""The AWD-LSTM task: its loss, its state, its trivial baseline and its scales."""

import math
from itertools import pairwise

import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task
from switch_ema.zoo.data.word_arrays import number_words
from switch_ema.zoo.tasks.language.awd_lstm import AWDLanguageModel
from switch_ema.zoo.tasks.language.words import unigram_perplexity
from tests.zoo.tasks.helpers import measure, seeded_model, small_task


def write_text(folder, content, name="ptb"):
    (folder / name).mkdir()
    for part in ("train", "test"):
        (folder / name / f"{part}.txt").write_bytes(content)


def test_state_is_carried_over_batches():
    task = small_task("awd-lstm")
    model = seeded_model(task)
    batches = []
    for batch in task.train_loader(0):
        task.loss(model, batch)
        batches.append(batch)
    assert batches[0][2].state is None
    for before, after in pairwise(batches):
        assert before[3] is after[2]
        assert not any(part.requires_grad for pair in before[3].state for part in pair)


def test_regularisation_is_of_training_alone():
    task = small_task("awd-lstm")
    model = seeded_model(task).eval()
    words, following, *_ = batch = next(iter(task.train_loader(0)))
    reading, _ = model(words)
    plain = torch.nn.functional.cross_entropy(
        reading.logits.flatten(0, 1), following.flatten()
    )
    assert task.loss(model, batch).item() == pytest.approx(plain.item())
    for module in model.modules():
        module.training = True
    model.drop = model.drop.scaled(0)
    activation = 2 * reading.raw.square().mean()
    slowness = (reading.raw[1:] - reading.raw[:-1]).square().mean()
    assert task.loss(model, batch).item() == pytest.approx(
        (plain + activation + slowness).item()
    )


def test_scales():
    recipe = AWDLanguageModel.recipe_for({"scale": "paper"})
    assert (recipe.epochs, recipe.clip) == (200, 0.25)
    # Milestones 100 and 145.
    assert recipe.schedule == "step:milestones=(0.5,0.725)"
    assert recipe.methods["ema"]["decay"] == 0.9999
    assert AWDLanguageModel.recipe_for({}).epochs < 20
    with pytest.raises(UsageError, match="scale must be"):
        create_task("awd-lstm:dataset=pydoc,scale=huge", (0,))


def test_unigram_model():
    task = small_task("awd-lstm")
    unigram = task.trivial()["unigram"]["perplexity"]
    untrained = measure(task, seeded_model(task))["perplexity"]
    assert 1 < unigram < untrained
    # By hand: counts 3 and 1, one more each, two words.
    train, test = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1])
    expected = math.exp(-(math.log(4 / 6) + math.log(2 / 6)) / 2)
    assert unigram_perplexity(train, test, 2) == pytest.approx(expected)


def test_full_vocabulary_has_rare_words():
    words = ["a", "b", "a"]
    assert list(number_words(words, 10)) == ["<unk>", "<eos>", "a"]
    assert list(number_words(words, 10, least=1)) == ["<unk>", "<eos>", "a", "b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a cat\nsat \xff there\n", r"train.txt, line 2: the text must be UTF-8"),
        (b"", r"train.txt is empty"),
    ],
)
def test_bad_text(tmp_path, monkeypatch, content, said):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    write_text(tmp_path, content)
    with pytest.raises(UsageError, match=said):
        create_task("awd-lstm:dataset=ptb", (0,))


def test_text_that_is_too_short(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    write_text(tmp_path, b"a cat sat\n")
    with pytest.raises(UsageError, match="batch must be below half of the words"):
        create_task("awd-lstm:dataset=ptb", (0,))
