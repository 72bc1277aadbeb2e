"""BERT: its published size, its layers, and what it may look at."""

import pytest
import torch

from switch_ema.bench.optimizers.catalog import create_optimizer
from switch_ema.bench.spec import Spec
from switch_ema.zoo.models.bert import (
    BertClassifier,
    BertSize,
    CausalBert,
    bert_config,
)

TINY = BertSize(layers=2, width=8, heads=2, inner=16, positions=16)


def test_bert_base_has_its_published_size():
    from transformers import BertModel

    with torch.device("meta"):
        model = BertModel(bert_config(BertSize(), 30_522))
    assert sum(p.numel() for p in model.parameters()) == 109_482_240


def test_filling_a_text_up_changes_nothing():
    torch.manual_seed(0)
    model = BertClassifier(bert_config(TINY, 20), 3).eval()
    text = torch.tensor([[2, 7, 9, 3]])
    filled = torch.tensor([[2, 7, 9, 3, 0, 0], [2, 7, 9, 3, 8, 8]])
    torch.testing.assert_close(model(filled)[:1], model(text))


def test_every_parameter_of_the_classifier_is_trained():
    torch.manual_seed(0)
    model = BertClassifier(bert_config(TINY, 20), 3)
    model(torch.tensor([[2, 7, 9, 3]])).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_layer_decay_counts_from_the_head():
    model = BertClassifier(bert_config(TINY, 20), 3)
    spec = Spec("adamw", {"lr": 1.0})
    groups = create_optimizer(spec, model, layer_decay=0.75).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}

    def rate(part):
        return {round(rates[id(p)], 4) for p in part.parameters()}

    assert rate(model.head) == {1.0}
    assert rate(model.bert.encoder.layer[1]) == {0.75}
    assert rate(model.bert.encoder.layer[0]) == {0.5625}
    assert rate(model.bert.embeddings) == {0.4219}


def test_the_language_model_sees_no_later_word():
    torch.manual_seed(0)
    config = bert_config(TINY, 20, is_decoder=True)
    model = CausalBert(config).eval()
    text = torch.tensor([[4, 7, 9, 3, 5]])
    changed = text.clone()
    changed[0, 3] = 8
    one, other = model(text), model(changed)
    torch.testing.assert_close(one[:, :3], other[:, :3])
    assert (one[:, 3] - other[:, 3]).abs().max() > 1e-4
    shared = model.bert.get_input_embeddings().weight
    assert model.bert.get_output_embeddings().weight is shared


@pytest.mark.parametrize("words", [20, 31])
def test_the_vocabulary_decides_the_outputs(words):
    model = CausalBert(bert_config(TINY, words, is_decoder=True))
    assert model(torch.tensor([[4, 7]])).shape == (1, 2, words)
