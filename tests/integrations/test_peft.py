"""Adapters of peft: only what is trained is averaged, and peft loads the export."""

import pytest
import torch

from switch_ema import EMA, SwitchEMA, constant, merge_checkpoints, uniform_soup
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import assert_close

peft = pytest.importorskip("peft")
from switch_ema.integrations.transformers import SwitchEMACallback  # noqa: E402
from tests.integrations.test_transformers import (  # noqa: E402
    EPOCHS,
    OPTIONS,
    STEPS,
    language_model,
    rows,
    trainer,
)

pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = torch.stack([row["input_ids"] for row in rows()])


def adapted(dtype=torch.float32):
    base = language_model().to(dtype)
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    torch.manual_seed(1)
    return peft.get_peft_model(base, config)


def trained(model, make=EMA, steps=3):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.5)
    averager = make(model, optimizer, decay=constant(0.5), include="trainable")
    for _ in range(steps):
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return averager


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits


def test_the_shadow_holds_what_is_trained_and_nothing_else():
    model = adapted(torch.bfloat16)
    ema = trained(model)
    average = ema.averaged_tensors()
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert set(average) == set(trainable) and len(average) == 4
    held = sum(tensor.nbytes for tensor in average.values())
    assert held == 4 * sum(p.numel() for p in trainable.values())  # in float32
    assert held < 0.1 * sum(p.nbytes for p in model.parameters())
    frozen = {n: p.data_ptr() for n, p in model.named_parameters() if n not in average}
    with ema.averaged():
        now = {n: p.data_ptr() for n, p in model.named_parameters() if n in frozen}
        assert now == frozen  # the base is the model's own, in its own precision
    copied = ema.averaged_copy()
    assert {p.dtype for p in copied.base_model.parameters()} >= {torch.bfloat16}


def test_peft_loads_the_exported_average(tmp_path):
    ema = trained(adapted())
    with ema.averaged() as model:
        expected = logits(model)
        model.save_pretrained(tmp_path)
    live = logits(model)
    assert {file.name for file in tmp_path.glob("*.safetensors")} == {
        "adapter_model.safetensors"
    }
    loaded = peft.PeftModel.from_pretrained(language_model(), tmp_path)
    assert torch.equal(logits(loaded), expected)
    assert not torch.equal(live, expected)


def test_a_switch_writes_the_adapter_alone():
    model = adapted()
    base = {
        n: p.detach().clone()
        for n, p in model.named_parameters()
        if not p.requires_grad
    }
    sema = trained(model, SwitchEMA)
    sema.switch()
    average = sema.averaged_tensors()
    for name, parameter in model.named_parameters():
        expected = average[name] if name in average else base[name]
        assert torch.equal(parameter, expected)


def test_the_trainer_saves_and_resumes_the_adapter(tmp_path):
    whole = SwitchEMACallback(include="trainable", **OPTIONS)
    at = STEPS + 1
    options = {"save_strategy": "steps", "save_steps": at}
    run = trainer(tmp_path, whole, adapted(), **options)
    run.train()
    folder = tmp_path / f"checkpoint-{at}"
    saved = torch.load(folder / "switch_ema.pt", weights_only=True)
    assert set(saved["live"]) == set(whole.averager.averaged_tensors())
    assert (folder / "adapter_model.safetensors").exists()
    again = SwitchEMACallback(include="trainable", **OPTIONS)
    resumed = trainer(tmp_path / "again", again, adapted())
    resumed.train(resume_from_checkpoint=str(folder))
    assert again.averager.switches == EPOCHS
    first, second = whole.averager, again.averager
    assert_same(first.averaged_state_dict(), second.averaged_state_dict())
    assert_same(dict(run.model.state_dict()), dict(resumed.model.state_dict()))
    run.save_model(str(tmp_path / "final"))
    loaded = peft.PeftModel.from_pretrained(language_model(), tmp_path / "final")
    with whole.averager.averaged() as model:
        assert torch.equal(logits(loaded), logits(model))


def test_adapters_are_merged_as_checkpoints_are(tmp_path):
    paths, states = [], []
    for i in range(2):
        model = adapted()
        trained(model, steps=i + 1)
        paths.append(tmp_path / f"adapter-{i}")
        model.save_pretrained(paths[-1])
        states.append(peft.get_peft_model_state_dict(model))
    merge_checkpoints(paths, tmp_path / "merged")
    loaded = peft.PeftModel.from_pretrained(language_model(), tmp_path / "merged")
    assert_close(peft.get_peft_model_state_dict(loaded), uniform_soup(states))
