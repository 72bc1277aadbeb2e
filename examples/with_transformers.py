"""Switch EMA in Transformers' Trainer, with a tiny character model."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import logging

from switch_ema.integrations.transformers import SwitchEMACallback

TEXT = """
It was the best of times, it was the worst of times, it was the age of wisdom, it was
the age of foolishness, it was the epoch of belief, it was the epoch of incredulity, it
was the season of Light, it was the season of Darkness, it was the spring of hope, it
was the winter of despair, we had everything before us, we had nothing before us.
"""
LENGTH = 32


def rows() -> list[dict[str, torch.Tensor]]:
    """Windows of characters for next-character prediction."""
    letters = sorted(set(TEXT))
    codes = torch.tensor([letters.index(letter) for letter in TEXT])
    windows = codes.unfold(0, LENGTH, 4)
    return [{"input_ids": window, "labels": window} for window in windows]


def main() -> None:
    logging.set_verbosity_error()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(set(TEXT)), n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2
    )
    averaging = SwitchEMACallback(decay=0.9)
    trainer = Trainer(
        GPT2LMHeadModel(config),
        TrainingArguments(
            "letters",
            num_train_epochs=4,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows(),
        eval_dataset=rows(),
        callbacks=[averaging],
    )
    trainer.train()
    trainer.save_model("letters/averaged")  # the best averaged model
    loaded = GPT2LMHeadModel.from_pretrained("letters/averaged")
    assert averaging.averager is not None
    print(f"loss of the best average {trainer.state.best_metric:.3f}")
    print(f"{averaging.averager.switches} switches, {loaded.num_parameters()} weights")


if __name__ == "__main__":
    main()
