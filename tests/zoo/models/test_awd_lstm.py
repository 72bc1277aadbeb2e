"""The AWD-LSTM: what is dropped, what is shared, and its published size."""

import pytest
import torch

from switch_ema.zoo.models.awd_lstm import AWDLSTM, AWDDropout, locked_dropout

NOTHING = AWDDropout().scaled(0)


@pytest.mark.parametrize(
    ("layers", "count"),
    # With 3 layers it is the 24 M of Merity et al. (2018).
    [(2, 13_632_400), (3, 24_221_600)],
)
def test_published_size(layers, count):
    with torch.device("meta"):
        model = AWDLSTM(10_000, layers=layers)
    assert sum(p.numel() for p in model.parameters()) == count


def test_without_dropout_it_is_two_plain_layers():
    torch.manual_seed(0)
    model = AWDLSTM(11, width=4, hidden=6, drop=NOTHING).train()
    words = torch.randint(11, (7, 3))
    reading, states = model(words)
    first, (h, c) = model.layers[0](model.embedding(words))
    second, _ = model.layers[1](first)
    torch.testing.assert_close(reading.raw, second)
    torch.testing.assert_close(reading.logits, model.classifier(second))
    torch.testing.assert_close(states[0], (h, c))
    assert model.classifier.weight is model.embedding.weight


def test_state_continues_the_text():
    torch.manual_seed(0)
    model = AWDLSTM(11, width=4, hidden=6).eval()
    words = torch.randint(11, (8, 3))
    whole, _ = model(words)
    begun, states = model(words[:5])
    rest, _ = model(words[5:], states)
    read = torch.cat([begun.logits, rest.logits])
    torch.testing.assert_close(read, whole.logits)


def test_locked_dropout_is_the_same_at_every_position():
    torch.manual_seed(0)
    dropped = locked_dropout(torch.ones(5, 4, 50), 0.5, True)
    assert torch.equal(dropped, dropped[:1].expand_as(dropped))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped[0, 0], dropped[0, 1])
    assert locked_dropout(dropped, 0.5, False) is dropped


def test_dropped_words_are_dropped_everywhere():
    torch.manual_seed(0)
    drop = AWDDropout(words=0.5, inputs=0, hidden=0, outputs=0, weights=0)
    model = AWDLSTM(40, width=4, hidden=6, drop=drop).train()
    vectors = model._vectors(torch.arange(40).repeat(2, 1).t())
    assert torch.equal(vectors[:, 0], vectors[:, 1])
    lost = (vectors[:, 0] == 0).all(1).sum()
    assert 8 < lost < 32


def test_weights_are_dropped_in_training_alone():
    torch.manual_seed(0)
    drop = AWDDropout(words=0, inputs=0, hidden=0, outputs=0, weights=0.5)
    model = AWDLSTM(11, width=4, hidden=6, drop=drop)
    words = torch.randint(11, (7, 3))
    one, other = (model.train()(words)[0].logits for _ in range(2))
    # The first word has no hidden state before it that weights could be dropped for.
    assert torch.equal(one[0], other[0])
    assert not torch.equal(one[1:], other[1:])
    one, other = (model.eval()(words)[0].logits for _ in range(2))
    assert torch.equal(one, other)
    model.train()(words)[0].logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_hidden_weights_that_are_not_dropped_are_trained():
    torch.manual_seed(0)
    drop = AWDDropout(words=0, inputs=0, hidden=0, outputs=0, weights=0.5)
    model = AWDLSTM(11, width=20, hidden=30, drop=drop).train()
    model(torch.randint(11, (7, 3)))[0].logits.square().sum().backward()
    for layer in model.layers:
        # A dropped weight has no gradient in this step, each of the others has one.
        trained = (layer.weight_hh_l0.grad != 0).double().mean().item()
        deviation = 0.5 / layer.weight_hh_l0.numel() ** 0.5
        assert abs(trained - 0.5) < 4 * deviation
