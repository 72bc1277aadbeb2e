"""The Keras callback on the torch backend against the same rule by hand."""

import os

import numpy as np
import pytest
import torch

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras")
from switch_ema.integrations.keras import SwitchEMACallback  # isort: skip
import keras

from switch_ema import constant, create_averager
from switch_ema.integrations.best import BestBy
from tests.integrations.helpers import (
    BATCH,
    CURVES,
    EPOCHS,
    OPTIONS,
    SCORES,
    STEPS,
    Interrupted,
    assert_both_curves,
    digits,
)

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="Keras runs on another backend"
)


def network(**optimizer):
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(16, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, **optimizer), loss)
    return model


def fit(model, *callbacks, epochs=EPOCHS, **options):
    x, y = (tensor.numpy() for tensor in digits())
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0} | options
    model.fit(x, y, epochs=epochs, callbacks=list(callbacks), **options)


def weights(model):
    return [torch.as_tensor(value).clone() for value in model.get_weights()]


def trained(model):
    """Without the moving statistics, which ``fit`` starts otherwise than a call."""
    return [variable.value.detach().clone() for variable in model.trainable_variables]


def plain(epochs=EPOCHS):
    """A torch loop over the same Keras layers: no fit, no Keras optimizer."""
    model = network()
    parameters = [variable.value for variable in model.trainable_variables]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    averager = create_averager("switch-ema", model, optimizer, **OPTIONS)
    x, y = digits()
    for _ in range(epochs):
        for start in range(0, len(x), BATCH):
            batch = slice(start, start + BATCH)
            optimizer.zero_grad()
            logits = model(x[batch], training=True)
            torch.nn.functional.cross_entropy(logits, y[batch]).backward()
            optimizer.step()
        averager.end_epoch()
    return averager, model


def test_equals_the_plain_loop():
    callback = SwitchEMACallback(**OPTIONS)
    model = network()
    fit(model, callback)
    averager, other = plain()
    with callback.averager.averaged(), averager.averaged():
        for ours, theirs in zip(trained(model), trained(other), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert callback.averager.steps == averager.steps == EPOCHS * STEPS
    assert callback.averager.switches == EPOCHS


def test_accumulation_counts_optimizer_steps():
    callback = SwitchEMACallback(**OPTIONS)
    fit(network(gradient_accumulation_steps=2), callback)
    assert callback.averager.steps == EPOCHS * STEPS // 2


def test_steps_skipped_by_the_loss_scale_do_not_count():
    callback, model = SwitchEMACallback("ema", **OPTIONS), network()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model.compile(scaled, model.loss)
    x, y = (tensor.numpy().copy() for tensor in digits())
    x[BATCH] = np.inf  # the gradients of the second of 4 batches are not finite
    model.fit(x, y, BATCH, shuffle=False, verbose=0, callbacks=[callback])
    assert callback.averager.steps == STEPS - 1


def test_evaluation_sees_the_average_and_leaves_the_live_weights():
    callback = SwitchEMACallback("ema", **OPTIONS)
    model = network()
    x, y = (tensor.numpy() for tensor in digits())
    history = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: history.append(logs["val_loss"])
    )
    fit(model, callback, note, validation_data=(x, y))
    live = weights(model)
    shown = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    predicted = model.predict(x, verbose=0)
    assert history[-1] == pytest.approx(shown, abs=1e-6)
    for before, after in zip(live, weights(model), strict=True):
        assert torch.equal(before, after)
    with callback.averager.averaged():
        assert np.allclose(predicted, np.asarray(model(x).detach()), atol=1e-6)


def test_a_failing_evaluation_restores_the_live_weights():
    class Fails(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            raise Interrupted

    callback, model = SwitchEMACallback("ema", **OPTIONS), network()
    data = tuple(tensor.numpy() for tensor in digits())
    with pytest.raises(Interrupted):
        fit(model, callback, Fails(), validation_data=data)
    reference = network()
    fit(reference, epochs=1)
    for ours, theirs in zip(weights(model), weights(reference), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("again", [False, True])
def test_an_exception_ends_the_training(again):
    """Evaluations after it show the average, until ``fit`` is called again."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    x, y = data = tuple(tensor.numpy() for tensor in digits())
    callback, model = SwitchEMACallback("ema", evaluate="live", **OPTIONS), network()
    if again:
        fit(model, callback, epochs=1)
    with pytest.raises(KeyboardInterrupt):
        fit(model, callback, Stops(), validation_data=data)
    predicted = model.predict(x, verbose=0)
    with callback.averager.averaged():
        assert np.allclose(predicted, np.asarray(model(x).detach()), atol=1e-6)
    fit(model, callback, epochs=1, validation_data=data)
    measured = model.history.history["val_loss"]
    assert measured == pytest.approx([model.loss(y, model(x)).item()], rel=1e-5)


def test_resuming_is_bit_for_bit(tmp_path):
    whole, model = SwitchEMACallback(**OPTIONS), network()
    fit(model, whole)

    first, half = SwitchEMACallback(**OPTIONS), network()
    fit(half, first, epochs=1)
    half.save(tmp_path / "half.keras")
    torch.save(first.state_dict(), tmp_path / "averager.pt")

    resumed = keras.models.load_model(tmp_path / "half.keras")
    second = SwitchEMACallback(**OPTIONS)
    second.load_state_dict(torch.load(tmp_path / "averager.pt", weights_only=True))
    fit(resumed, second, initial_epoch=1)
    assert second.averager.steps == whole.averager.steps
    with whole.averager.averaged(), second.averager.averaged():
        for ours, theirs in zip(weights(resumed), weights(model), strict=True):
            assert torch.equal(ours, theirs)


def test_a_callback_starts_anew_with_another_model():
    callback, first, second = SwitchEMACallback("ema", **OPTIONS), network(), network()
    fit(first, callback, epochs=1)
    before = callback.averager
    fit(second, callback)
    assert callback.averager.steps == EPOCHS * STEPS
    assert before.steps == STEPS
    x = digits()[0].numpy()
    for model, averager in ((first, before), (second, callback.averager)):
        shown = model.predict(x, verbose=0)
        with averager.averaged():
            assert np.allclose(shown, np.asarray(model(x).detach()), atol=1e-6)


def test_a_model_shows_the_average_of_its_last_callback():
    model, first = network(), SwitchEMACallback("ema", **OPTIONS)
    fit(model, first, epochs=1)
    second = SwitchEMACallback("ema", decay=constant(0.5))
    fit(model, second, epochs=1)
    x = digits()[0].numpy()
    shown = model.predict(x, verbose=0)
    with second.averager.averaged():
        assert np.allclose(shown, np.asarray(model(x).detach()), atol=1e-6)


def test_a_model_that_is_built_by_fit_with_a_seed_of_its_own(tmp_path):
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss)
    callback = SwitchEMACallback(**OPTIONS)
    fit(model, callback)
    assert callback.averager.steps == EPOCHS * STEPS
    model.save(tmp_path / "model.keras")
    again = SwitchEMACallback(**OPTIONS)
    again.load_state_dict(callback.state_dict())
    fit(keras.models.load_model(tmp_path / "model.keras"), again, epochs=0)
    shadows = callback.state_dict()["shadow"], again.state_dict()["shadow"]
    assert sum(shadow.dtype == torch.int32 for shadow in shadows[0].values()) == 1
    assert shadows[0].keys() == shadows[1].keys()
    for name, shadow in shadows[0].items():
        assert torch.equal(shadow, shadows[1][name]), name


def test_state_before_fit_says_why_there_is_none():
    with pytest.raises(RuntimeError, match="before fit"):
        SwitchEMACallback().state_dict()


def test_both_curves_are_those_of_each_alone():
    data = tuple(tensor.numpy() for tensor in digits())
    found, ends = {}, []
    for evaluate in ("averaged", "live", "both"):
        callback = SwitchEMACallback("ema", **CURVES, evaluate=evaluate)
        model = network()
        fit(model, callback, validation_data=data)
        rows = zip(*model.history.history.values(), strict=True)
        found[evaluate] = [
            dict(zip(model.history.history, row, strict=True)) for row in rows
        ]
        ends.append(weights(model))
    assert_both_curves(found, "val_loss")
    assert found["both"][-1]["averaging/decay"] == pytest.approx(0.9)
    assert found["both"][-1]["averaging/distance"] > 0
    for before, after in zip(ends[0], ends[2], strict=True):
        assert torch.equal(before, after)
    assert set(model.evaluate(*data, verbose=0, return_dict=True)) == {"loss"}


def test_the_best_average_is_shown_after_training_and_resumed(tmp_path):
    class Scored(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_score"] = SCORES[epoch]

    class Note(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with callback.averager.averaged():
                averages.append(weights(self.model))
            if len(averages) == 1:
                self.model.save(tmp_path / "model.keras")
                torch.save(callback.state_dict(), tmp_path / "averager.pt")

    by = BestBy("val_score", higher_is_better=True, n=100)
    averages: list = []
    callback, model = SwitchEMACallback("ema", best=by, **OPTIONS), network()
    fit(model, Scored(), callback, Note())
    assert callback.best.scores == list(SCORES)
    x = digits()[0].numpy()
    shown = model.predict(x, verbose=0)
    live = weights(model)
    model.set_weights([value.numpy() for value in averages[1]])
    assert np.allclose(shown, np.asarray(model(x).detach()), atol=1e-6)
    model.set_weights([value.numpy() for value in live])

    resumed = keras.models.load_model(tmp_path / "model.keras")
    again = SwitchEMACallback("ema", best=by, **OPTIONS)
    again.load_state_dict(torch.load(tmp_path / "averager.pt", weights_only=True))
    fit(resumed, Scored(), again, initial_epoch=1)
    assert again.best.scores == list(SCORES)
    with callback.best.averaged(), again.best.averaged():
        pairs = zip(weights(model), weights(resumed), averages[1], strict=True)
        assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in pairs)


def test_an_average_may_begin_after_a_share_of_the_run():
    callback = SwitchEMACallback("ema", start="50%", **OPTIONS)
    fit(network(), callback)
    assert callback.averager.state_dict()["average_start"] == EPOCHS * STEPS / 2
