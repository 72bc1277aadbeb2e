"""Checkpoints of trainers and folders: the extracted average gives their logits."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file

from switch_ema import EMA, constant
from switch_ema.doctor.extract import extract_weights
from switch_ema.doctor.recognise import inspect_checkpoint
from tests.doctor.libraries import DECAY, network, train

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = torch.ones(2, 1, 4, 4)


def logits(weights, prefix=""):
    model = network(seed=9).eval()
    model.load_state_dict({name[len(prefix) :]: v for name, v in weights.items()})
    return model(IMAGES)


def extracted(path, tmp_path, what="average"):
    out = tmp_path / f"extracted-{what}.safetensors"
    extract_weights(path, out, what)
    return load_file(out)


def lightning_checkpoint(folder, callback):
    """Train with a callback; return the module and the checkpoint."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.randn(64, 1, 4, 4), torch.randint(3, (64,))
    )
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8))
    (path,) = folder.rglob("*.ckpt")
    return module, path


def test_lightning_weight_averaging(tmp_path):
    callbacks = pytest.importorskip("lightning.pytorch.callbacks")
    callback = callbacks.EMAWeightAveraging(decay=DECAY, use_buffers=False)
    module, path = lightning_checkpoint(tmp_path, callback)
    # After fit, the module has the average, as the checkpoint's state dict.
    found = extracted(path, tmp_path)
    assert torch.equal(logits(found, "net."), module.net.eval()(IMAGES))
    live = extracted(path, tmp_path, "live")
    assert not torch.equal(live["net.0.weight"], found["net.0.weight"])


def test_lightning_with_our_callback(tmp_path):
    pytest.importorskip("lightning.pytorch")
    from switch_ema.integrations.lightning import SwitchEMACallback

    callback = SwitchEMACallback("ema", decay=constant(DECAY))
    module, path = lightning_checkpoint(tmp_path, callback)
    found = extracted(path, tmp_path)
    with callback.averager.averaged():
        assert torch.equal(logits(found, "net."), module.net.eval()(IMAGES))
    live = extracted(path, tmp_path, "live")
    assert torch.equal(logits(live, "net."), module.net.eval()(IMAGES))


def language_model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2
    )
    return transformers.GPT2LMHeadModel(config)


TOKENS = torch.arange(8)[None]


def language_logits(folder):
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    return model(TOKENS).logits


def test_transformers_with_our_callback(tmp_path):
    transformers = pytest.importorskip("transformers")
    from switch_ema.integrations.transformers import SwitchEMACallback

    rows = [{"input_ids": TOKENS[0], "labels": TOKENS[0]}] * 8
    arguments = transformers.TrainingArguments(
        str(tmp_path / "run"),
        max_steps=4,
        save_steps=4,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    callback = SwitchEMACallback("ema", decay=constant(DECAY))
    trainer = transformers.Trainer(
        language_model(), arguments, train_dataset=rows, callbacks=[callback]
    )
    trainer.train()
    folder = tmp_path / "run" / "checkpoint-4"
    extract_weights(folder, tmp_path / "average")
    assert (tmp_path / "average" / "config.json").is_file()
    found = language_logits(tmp_path / "average")
    assert torch.equal(found, language_logits(folder))
    average = load_file(tmp_path / "average" / "model.safetensors")
    # The head is tied, and the average has it under one of its names.
    embedding = average["transformer.wte.weight"]
    assert torch.equal(average["lm_head.weight"], embedding)
    live = extracted(folder, tmp_path, "live")
    trained = trainer.model.state_dict()
    for name in ("transformer.wte.weight", "transformer.ln_f.bias"):
        assert torch.equal(live[name], trained[name])


def test_shards_of_transformers(tmp_path):
    language_model().save_pretrained(tmp_path / "model", max_shard_size="10KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    extract_weights(tmp_path / "model", tmp_path / "out", "weights")
    found = language_logits(tmp_path / "out")
    assert torch.equal(found, language_logits(tmp_path / "model"))


def test_adapters_of_peft(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(language_model(), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    model.save_pretrained(tmp_path / "adapter")
    assert inspect_checkpoint(tmp_path / "adapter").format == "peft adapter"
    found = extracted(tmp_path / "adapter", tmp_path, "weights")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    torch.save(found, tmp_path / "adapter" / "adapter_model.bin")
    again = peft.PeftModel.from_pretrained(language_model(), tmp_path / "adapter")
    assert torch.equal(again.eval()(TOKENS).logits, model.eval()(TOKENS).logits)


def test_folders_of_diffusers(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    from diffusers.training_utils import EMAModel

    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8,),
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        layers_per_block=1,
        norm_num_groups=4,
    )
    kind = diffusers.UNet2DModel
    ema = EMAModel(unet.parameters(), DECAY, model_cls=kind, model_config=unet.config)
    with torch.no_grad():
        for parameter in unet.parameters():
            parameter.add_(0.1)
    for _ in range(3):
        ema.step(unet.parameters())
    unet.save_pretrained(tmp_path / "run" / "unet")
    ema.save_pretrained(tmp_path / "run" / "unet_ema")
    (average,) = inspect_checkpoint(tmp_path / "run").of("average")
    assert average.facts["optimization_step"] == 3
    noise, time = torch.ones(1, 3, 8, 8), torch.tensor([1])
    for what, folder in (("average", "unet_ema"), ("live", "unet")):
        expected = kind.from_pretrained(tmp_path / "run" / folder).eval()
        model = kind.from_config(unet.config).eval()
        model.load_state_dict(extracted(tmp_path / "run", tmp_path, what))
        for own, value in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(own, value)
        # Convolutions round by the place of their weights in memory.
        torch.testing.assert_close(
            model(noise, time).sample, expected(noise, time).sample
        )


def test_folders_of_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    ema = EMA(model, decay=constant(DECAY))
    optimizer = train(model, ema.update)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(ema)
    accelerator.save_state(str(tmp_path / "state"))
    found = extracted(tmp_path / "state", tmp_path)
    live = extracted(tmp_path / "state", tmp_path, "live")
    assert torch.equal(logits(live), model.eval()(IMAGES))
    with ema.averaged():
        assert torch.equal(logits(found), model.eval()(IMAGES))


def test_torchtitan(tmp_path):
    import torch.distributed.checkpoint as dcp

    model = network()
    ema = EMA(model, decay=constant(DECAY))
    train(model, ema.update)
    averages = ema.averaged_state_dict()
    state = model.state_dict() | {
        f"ema.state.{name}.ema_params": averages[name]
        for name, _ in model.named_parameters()
    }
    dcp.save(state, checkpoint_id=str(tmp_path / "step-12"))
    found = extracted(tmp_path / "step-12", tmp_path)
    expected = model.state_dict() | {
        name: averages[name] for name, _ in model.named_parameters()
    }
    assert torch.equal(logits(found), logits(expected))


def test_our_own_files(tmp_path):
    from switch_ema import merge_checkpoints

    model = network()
    ema = EMA(model, decay=constant(DECAY))
    train(model, ema.update)
    path = tmp_path / "average.safetensors"
    ema.save_averaged(path)
    found = extracted(path, tmp_path)
    with ema.averaged():
        assert torch.equal(logits(found), model.eval()(IMAGES))
    told = inspect_checkpoint(tmp_path / "extracted-average.safetensors").provenance
    assert told["switch_ema.method"] == "ema"
    assert told["switch_ema.steps"] == "12"
    merge_checkpoints([path, path], tmp_path / "merged.safetensors")
    (part,) = inspect_checkpoint(tmp_path / "merged.safetensors").parts
    merged = extracted(tmp_path / "merged.safetensors", tmp_path, part.role)
    assert torch.equal(logits(merged), logits(found))


def test_an_index_of_a_folder_is_kept_in_the_folder(tmp_path):
    """An index that leads out of its folder is refused, and nothing is written."""
    language_model().save_pretrained(tmp_path / "model", max_shard_size="10KB")
    (index,) = (tmp_path / "model").glob("*.index.json")
    content = json.loads(index.read_text())
    name = next(iter(content["weight_map"]))
    content["weight_map"][name] = "../outside.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is not an index of safetensors shards"):
        extract_weights(tmp_path / "model", tmp_path / "out", "weights")
    assert not (tmp_path / "out").exists()


KERAS = """
import os, sys
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np
keras.utils.set_random_seed(0)
inside, outside = keras.Input((8,)), keras.layers.Dense(3)
model = keras.Sequential([inside, outside])
optimizer = keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9)
model.compile(optimizer, "mse")
for _ in range(3):
    model.train_on_batch(np.ones((4, 8)), np.ones((4, 3)))
model.save("model.keras")
model.save_weights("model.weights.h5")
average = [np.array(v) for v in optimizer.variables if "average" in v.path]
model = keras.saving.load_model("model.keras")
assert not np.array_equal(np.array(model.trainable_variables[0]), average[0])
model.optimizer.finalize_variable_values(model.trainable_variables)
for own, value in zip(model.trainable_variables, average, strict=True):
    assert np.array_equal(np.array(own), value)
"""


@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
def test_keras_files_are_refused_with_a_conversion_that_works(tmp_path):
    subprocess.run([sys.executable, "-c", KERAS], cwd=tmp_path, check=True)
    for name in ("model.keras", "model.weights.h5"):
        with pytest.raises(ValueError, match="is a Keras file") as raised:
            inspect_checkpoint(tmp_path / name)
        assert "model.optimizer.finalize_variable_values" in str(raised.value)
