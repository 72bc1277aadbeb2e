"""Switch EMA in Keras 3 on the torch backend: one callback."""

from sklearn.datasets import load_digits

from switch_ema.integrations.keras import SwitchEMACallback  # selects the backend

import keras  # isort: skip


def main() -> None:
    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32") / 16
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(64, "relu"),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.AdamW(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    averaging = SwitchEMACallback(decay=0.9)
    history = model.fit(
        images[:1000],
        labels[:1000],
        batch_size=50,
        epochs=5,
        validation_data=(images[1000:], labels[1000:]),
        callbacks=[averaging],
        verbose=0,
    )
    for epoch, accuracy in enumerate(history.history["val_accuracy"], start=1):
        print(f"epoch {epoch}: accuracy of the average {accuracy:.3f}")
    assert averaging.averager is not None
    print(f"{averaging.averager.switches} switches")


if __name__ == "__main__":
    main()
