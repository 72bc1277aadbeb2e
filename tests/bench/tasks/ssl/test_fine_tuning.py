"""Fine-tuning: what it learns, at which rates, and what it leaves alone."""

import random

import numpy as np
import torch

from switch_ema.bench.data.vision import VisionSet
from switch_ema.bench.optimizers.catalog import create_optimizer
from switch_ema.bench.spec import Spec
from switch_ema.bench.tasks.ssl.encoder import create_encoder
from switch_ema.bench.tasks.ssl.fine_tuning import fine_tune, fine_tune_by_procedure
from switch_ema.bench.tasks.ssl.protocols import Labelled


def test_fine_tuning_learns_and_leaves_everything_as_it_was():
    torch.manual_seed(0)
    encoder = create_encoder("resnet18", scale="small", channels=1, image_size=8)
    encoder.eval()
    before = {name: t.clone() for name, t in encoder.state_dict().items()}
    y = torch.arange(200) % 2
    x = torch.randn(200, 1, 8, 8)
    x[:, 0, :4] += y[:, None, None]  # the upper half is brighter in one class
    state = torch.get_rng_state()
    data = Labelled(x[:150], y[:150], x[150:], y[150:], 2)
    with torch.no_grad():
        found = fine_tune(encoder, data, epochs=8, seed=0, batch=30)
        again = fine_tune(encoder, data, epochs=8, seed=0, batch=30)
    assert found == again > 75
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[n]) for n, t in encoder.state_dict().items())
    assert not encoder.training


def coloured(count):
    """Red and green images, easy to tell apart."""
    y = torch.arange(count) % 2
    x = torch.randint(0, 60, (count, 3, 16, 16), dtype=torch.uint8)
    x[torch.arange(count), y] += 150
    return x, y


def test_fine_tuning_by_the_procedure_learns_and_leaves_random_numbers_alone():
    torch.manual_seed(0)
    half = torch.full((3, 1, 1), 127.0)
    data = VisionSet(*coloured(64), *coloured(40), 2, half, half, mirrored=True)

    def tuned():
        torch.manual_seed(1)
        network = create_encoder(
            "resnet18", scale="small", channels=3, image_size=16, drop_path=0.1
        )
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
        with torch.no_grad():
            found = fine_tune_by_procedure(
                network,
                data,
                epochs=6,
                resolution=16,
                batch=8,
                seed=0,
                workers=0,
                lr=2e-3,
            )
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert np.array_equal(np.random.get_state()[1], states[2])
        return found

    assert tuned() == tuned() > 80


def test_layer_decay_slows_early_layers_by_the_factor():
    encoder = create_encoder("deit-t", scale="small", channels=1, image_size=8)
    encoder.reset_classifier(2)
    optimizer = create_optimizer(Spec("adamw", {"lr": 1.0}), encoder, layer_decay=0.65)
    rates = sorted({round(group["lr"], 6) for group in optimizer.param_groups})
    # Patches, two blocks, and the head.
    assert rates == [round(0.65**power, 6) for power in (3, 2, 1, 0)]
