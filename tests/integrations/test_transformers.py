"""The Transformers callback on a tiny random model, without network access."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from switch_ema import constant, create_averager
from tests.averaging.helpers import assert_same
from tests.integrations.helpers import WITHOUT_STATE, Interrupted, assert_close

transformers = pytest.importorskip("transformers")
from transformers import Trainer, TrainingArguments  # noqa: E402

from switch_ema.integrations.best import BestBy  # noqa: E402
from switch_ema.integrations.transformers import SwitchEMACallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = "the quick brown fox jumps over the lazy dog while the dog sleeps on. " * 4
ROWS, LENGTH, BATCH, EPOCHS = 16, 16, 4, 3
STEPS = ROWS // BATCH
OPTIONS = {"decay": constant(0.9)}
ADAM = {"optim": "adamw_torch", "learning_rate": 1e-3}


def rows():
    codes = torch.tensor([ord(c) % 32 for c in TEXT[: ROWS * LENGTH]])
    labels = codes.view(ROWS, LENGTH).clone()
    labels[:, 0] = -100  # never predicted; the Trainer counts labels by this mark
    return [
        {"input_ids": row, "labels": label}
        for row, label in zip(codes.view(ROWS, LENGTH), labels, strict=True)
    ]


def language_model():
    """Two layers, tied embeddings, no dropout: the plain loop has the same numbers."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def trainer(folder, callback, model=None, kind=Trainer, **options):
    settings = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_strategy": "no",
    }
    args = TrainingArguments(str(folder), **(settings | options))
    return kind(
        model or language_model(),
        args,
        train_dataset=Ordered(rows()),
        eval_dataset=rows(),
        callbacks=[callback],
    )


class Ordered(torch.utils.data.IterableDataset):
    """Rows in the order given, so that the plain loop has the same batches."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return len(self.data)


def plain(method="switch-ema", epochs=EPOCHS):
    model = language_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    averager = create_averager(method, model, optimizer, **OPTIONS)
    data = torch.stack([row["input_ids"] for row in rows()])
    for _ in range(epochs):
        for batch in data.split(BATCH):
            optimizer.zero_grad()
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
        averager.end_epoch()
    return averager


def test_the_best_average_is_shown_after_training_and_resumed(tmp_path):
    class Scored(Trainer):
        def evaluation_loop(self, *args, **kwargs):
            found = super().evaluation_loop(*args, **kwargs)
            epoch = round(self.state.epoch or 0)
            found.metrics["eval_score"] = (0.0, 0.5, 0.9, 0.1)[epoch]
            weight = self.model.transformer.wte.weight
            seen.append(weight.detach().clone())
            return found

    def train(folder, resume=None):
        by = BestBy("eval_score", higher_is_better=True, n=100)
        callback = SwitchEMACallback("ema", best=by, **OPTIONS)
        options = {"eval_strategy": "epoch", "save_strategy": "epoch"}
        run = trainer(folder, callback, kind=Scored, **options)
        run.train(resume_from_checkpoint=resume)
        return callback, run

    seen: list[torch.Tensor] = []
    callback, run = train(tmp_path / "whole")
    assert callback.best.scores == [0.5, 0.9, 0.1]
    expected = seen[1]
    run.evaluate()
    assert torch.equal(seen[-1], expected)
    assert callback.best.scores == [0.5, 0.9, 0.1]  # only those of the training
    run.save_model(tmp_path / "saved")
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert torch.equal(saved.transformer.wte.weight, expected)
    again, _ = train(
        tmp_path / "whole", str(tmp_path / "whole" / f"checkpoint-{STEPS * 2}")
    )
    assert again.best.scores == [0.5, 0.9, 0.1]
    name = "transformer.wte.weight"
    assert torch.equal(again.best.averaged_state_dict()[name], expected)


@pytest.mark.parametrize("micro", [BATCH, BATCH // 2])
def test_equals_the_plain_loop_also_with_accumulation(tmp_path, micro):
    callback = SwitchEMACallback(**OPTIONS)
    trainer(
        tmp_path,
        callback,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=BATCH // micro,
    ).train()
    reference = plain()
    assert_close(
        callback.averager.averaged_state_dict(), reference.averaged_state_dict()
    )
    assert_close(callback.averager.live_state_dict(), reference.live_state_dict())
    assert callback.averager.steps == EPOCHS * STEPS
    assert callback.averager.switches == EPOCHS


def test_an_incomplete_accumulation_is_one_step(tmp_path):
    """Of 4 batches by 3, the Trainer steps after the third and after the last."""
    callback = SwitchEMACallback(**OPTIONS)
    trainer(tmp_path, callback, gradient_accumulation_steps=3).train()
    assert callback.averager.steps == EPOCHS * 2
    assert callback.averager.switches == EPOCHS


def evaluated(averager):
    data = torch.stack([row["input_ids"] for row in rows()])
    with averager.averaged() as model, torch.no_grad():
        return model.eval()(input_ids=data, labels=data).loss.item()


def test_evaluation_and_saving_show_the_average(tmp_path):
    callback = SwitchEMACallback("ema", **OPTIONS)
    run = trainer(tmp_path, callback, eval_strategy="epoch")
    run.train()
    expected = evaluated(plain("ema"))
    losses = [log["eval_loss"] for log in run.state.log_history if "eval_loss" in log]
    assert losses[-1] == pytest.approx(expected, abs=1e-5)
    assert run.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-5)
    live = callback.averager.live_state_dict()
    assert_same(live, run.model.state_dict())
    run.save_model(str(tmp_path / "final"))
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "final")
    assert_close(loaded.state_dict(), callback.averager.averaged_state_dict())
    with callback.averager.averaged() as model:
        model.save_pretrained(tmp_path / "by hand")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "by hand")
    assert_close(loaded.state_dict(), callback.averager.averaged_state_dict())


def test_two_processes_with_fsdp2_equal_one_and_resume(tmp_path):
    script = Path(__file__).with_name("transformers_two_processes.py")
    command = [sys.executable, str(script), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert run.returncode == 0, run.stderr[-3000:]
    one = SwitchEMACallback(**OPTIONS)
    alone = trainer(tmp_path / "one", one, eval_strategy="epoch", **ADAM)
    alone.train()
    expected = one.averager
    whole, resumed = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True)
        for name in ("whole", "resumed")
    )
    assert whole["kind"] == "FSDPGPT2LMHeadModel"
    elements = sum(t.numel() for t in expected.averaged_tensors().values())
    assert whole["held"] < 0.6 * elements  # each process has its own half
    close = {"rtol": 0, "atol": 1e-6}
    for name, reference in (
        ("averaged", expected.averaged_state_dict()),
        ("live", expected.live_state_dict()),
    ):
        assert whole[name].keys() == reference.keys()
        for key, tensor in reference.items():
            torch.testing.assert_close(whole[name][key], tensor, **close)
    for name in ("averaged", "live", "best", "further"):
        assert_same(whole[name], resumed[name])
    name = "transformer.wte.weight"
    assert not torch.equal(whole["best"][name], whole["averaged"][name])
    assert whole["counts"] == resumed["counts"] == (EPOCHS * STEPS, EPOCHS, EPOCHS)
    losses = [log["eval_loss"] for log in alone.state.log_history if "eval_loss" in log]
    assert whole["losses"] == pytest.approx(losses, abs=1e-6)
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert best == pytest.approx(losses[0], abs=1e-6) and losses[0] > losses[-1] + 1e-4
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "whole saved")
    assert_same(whole["best"], dict(loaded.state_dict()))
    tokens = torch.stack([row["input_ids"] for row in rows()])
    with torch.no_grad():
        assert torch.equal(loaded.eval()(input_ids=tokens).logits, whole["logits"])


@pytest.mark.parametrize("best_epoch", [1, EPOCHS])
def test_the_best_model_is_the_best_average(tmp_path, best_epoch):
    """The loss falls, so the highest is that of the first epoch."""
    callback = SwitchEMACallback("ema", **OPTIONS)
    run = trainer(
        tmp_path,
        callback,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=best_epoch == 1,
    )
    run.train()
    assert run.state.best_model_checkpoint.endswith(f"checkpoint-{best_epoch * STEPS}")
    best = plain("ema", epochs=best_epoch).averaged_state_dict()
    assert_close(run.model.state_dict(), best)
    assert run.evaluate()["eval_loss"] == pytest.approx(run.state.best_metric, abs=1e-6)
    run.save_model(str(tmp_path / "best"))
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "best")
    assert_close(loaded.state_dict(), best)


@pytest.mark.parametrize("at", [STEPS + 2, STEPS])
def test_resuming_is_bit_for_bit(tmp_path, at):
    """Within an epoch, and after the last step of one, whose end is yet to come."""
    whole = SwitchEMACallback(**OPTIONS)
    run = trainer(tmp_path, whole, save_strategy="steps", save_steps=at)
    run.train()
    again = SwitchEMACallback(**OPTIONS)
    resumed = trainer(tmp_path / "again", again)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    assert_same(
        whole.averager.averaged_state_dict(), again.averager.averaged_state_dict()
    )
    assert_same(run.model.state_dict(), resumed.model.state_dict())
    assert again.averager.switches == EPOCHS


def test_a_checkpoint_without_an_average_is_resumed_with_a_warning(tmp_path):
    class Nothing(transformers.TrainerCallback):
        pass

    trainer(tmp_path, Nothing(), save_strategy="epoch").train()
    callback = SwitchEMACallback(**OPTIONS)
    resumed = trainer(tmp_path / "again", callback)
    with pytest.warns(UserWarning, match=WITHOUT_STATE):
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS}"))
    assert callback.averager.steps == (EPOCHS - 1) * STEPS


def test_a_checkpoint_is_never_complete_without_the_average(tmp_path):
    """Killed before its last file is written, the average is there already."""

    class Killed(Trainer):
        def _save_optimizer_and_scheduler(self, folder):
            raise Interrupted

    run = trainer(
        tmp_path, SwitchEMACallback(**OPTIONS), kind=Killed, save_strategy="epoch"
    )
    with pytest.raises(Interrupted):
        run.train()
    folder = tmp_path / f"checkpoint-{STEPS}"
    assert (folder / "switch_ema.pt").exists()
    assert not (folder / "trainer_state.json").exists()


def test_the_final_model_has_no_file_of_the_averager(tmp_path):
    run = trainer(tmp_path, SwitchEMACallback(**OPTIONS))
    run.train()
    run.save_model(str(tmp_path / "final"))
    assert not (tmp_path / "final" / "switch_ema.pt").exists()


def test_training_again_starts_anew(tmp_path):
    callback = SwitchEMACallback(**OPTIONS)
    trainer(tmp_path / "first", callback).train()
    run = trainer(tmp_path / "second", callback)
    run.train()
    reference = plain()
    assert_close(
        callback.averager.averaged_state_dict(), reference.averaged_state_dict()
    )
    run.train()  # the same trainer, from the weights it has
    assert callback.averager.steps == EPOCHS * STEPS


def test_a_second_callback_is_refused(tmp_path):
    run = trainer(tmp_path, SwitchEMACallback())
    with pytest.raises(ValueError, match="takes one SwitchEMACallback, got 2"):
        SwitchEMACallback("ema").attach(run)


def test_a_failing_evaluation_restores_the_live_weights(tmp_path):
    class Fails(Trainer):
        def prediction_step(self, *args, **kwargs):
            raise Interrupted

    run = trainer(
        tmp_path, SwitchEMACallback("ema", **OPTIONS), kind=Fails, eval_strategy="epoch"
    )
    with pytest.raises(Interrupted):
        run.train()
    live = plain("ema", epochs=1).live_state_dict()
    assert_close(run.model.state_dict(), live)


def test_an_exception_ends_the_training(tmp_path):
    """Evaluations after it are not scored, and measure what is shown, once."""

    class Stops(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == STEPS + 1:
                raise KeyboardInterrupt

    by = BestBy("eval_loss", higher_is_better=False, error=0.01)
    callback = SwitchEMACallback("ema", best=by, evaluate="both", **OPTIONS)
    run = trainer(tmp_path, callback, eval_strategy="epoch")
    run.add_callback(Stops())
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert "eval_loss_live" not in run.evaluate()
    assert len(callback.best.scores) == 1


def test_attach_to_a_trainer_that_exists(tmp_path):
    run = trainer(tmp_path, transformers.DefaultFlowCallback)
    callback = SwitchEMACallback(**OPTIONS)
    callback.attach(run)
    run.train()
    assert_close(callback.averager.averaged_state_dict(), plain().averaged_state_dict())


def test_a_callback_added_late_says_what_to_do(tmp_path):
    run = trainer(tmp_path, transformers.DefaultFlowCallback)
    run.add_callback(SwitchEMACallback())
    with pytest.raises(RuntimeError, match=r"call attach\(trainer\)"):
        run.train()


def test_both_curves_are_those_of_each_alone(tmp_path):
    """The live ones have their own names, and the training is the same."""
    found, weights = {}, []
    for evaluate in ("averaged", "live", "both"):
        options = {**OPTIONS, "evaluate": evaluate, "log_averaging": True}
        options["decays"] = ["constant(0.9)", 0.5]
        callback = SwitchEMACallback("ema", **options)
        run = trainer(tmp_path / evaluate, callback, eval_strategy="epoch")
        run.train()
        found[evaluate] = [row for row in run.state.log_history if "eval_loss" in row]
        weights.append(run.model.transformer.wte.weight.detach().clone())
    losses = {key: [row["eval_loss"] for row in own] for key, own in found.items()}
    assert losses["both"] == losses["averaged"] != losses["live"]
    assert [row["eval_loss_live"] for row in found["both"]] == losses["live"]
    assert "eval_loss_live" not in found["averaged"][0] | found["live"][0]
    for own in found.values():
        again = [row["eval_loss_ema_constant(0.9)"] for row in own]
        assert again == pytest.approx(losses["averaged"], rel=1e-6)
        assert [row["eval_loss_ema_0.5"] for row in own] != again
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])
    assert "eval_loss_live" not in run.evaluate()  # after the training, the average
    logged = [row for row in run.state.log_history if "averaging/decay" in row]
    assert [row["averaging/decay"] for row in logged] == pytest.approx([0.9] * EPOCHS)
    assert all(row["averaging/distance"] > 0 for row in logged)


class Growing(transformers.GPT2LMHeadModel):
    """Keeps a mask and a cache for the longest rows so far, as some models do."""

    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("mask", torch.ones(2, 2).tril().bool())
        self.register_buffer("cache", torch.zeros(1, dtype=torch.long))

    def forward(self, input_ids, labels=None, **keywords):
        if input_ids.shape[1] > len(self.mask):
            self.mask = torch.ones(2 * [input_ids.shape[1]]).tril().bool()
        self.cache = torch.arange(len(self.cache) + 1)  # grows in evaluation, too
        return super().forward(input_ids, labels=labels, **keywords)


@pytest.mark.parametrize("method", ["ema", "switch-ema"])
def test_buffers_that_grow_in_training_and_in_evaluation(tmp_path, method):
    callback = SwitchEMACallback(method, **OPTIONS)
    model = Growing(language_model().config)
    trained = trainer(
        tmp_path, callback, model, eval_strategy="epoch", save_strategy="epoch"
    )
    trained.train()
    averager = callback.averager
    assert averager.steps == EPOCHS * STEPS
    assert len(averager.live_state_dict()["mask"]) == LENGTH
    assert len(averager.state_dict()["shadow"]["cache"]) == len(model.cache)
    average = averager.averaged_state_dict()["lm_head.weight"]
    live = averager.live_state_dict()["lm_head.weight"]
    assert torch.equal(average, live) is (method == "switch-ema")


def test_an_average_may_begin_after_a_share_of_the_run(tmp_path):
    callback = SwitchEMACallback("ema", start="50%", **OPTIONS)
    run = trainer(tmp_path, callback)
    run.train()
    expected = run.state.max_steps / 2
    assert callback.averager.state_dict()["average_start"] == expected


def test_the_best_average_by_one_of_two_evaluation_sets(tmp_path):
    by = BestBy("eval_a_loss", higher_is_better=False, error=0.01)
    callback = SwitchEMACallback("ema", best=by, **OPTIONS)
    run = trainer(tmp_path, callback, eval_strategy="epoch")
    run.eval_dataset = {"a": rows(), "b": rows()[:4]}
    run.train()
    logged = [row for row in run.state.log_history if "eval_a_loss" in row]
    assert callback.best.scores == [row["eval_a_loss"] for row in logged]
    assert len(logged) == EPOCHS
