"""A Transformers script of the usual kind, with one line for switch-ema.

    python examples/scripts/transformers_script.py --output_dir letters

trains as ever. This compares methods on it, each training in a folder of its own:

    cd examples/scripts
    switch-ema compare --script \
        "python transformers_script.py --seed {seed} --output_dir {folder}"
"""

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

import switch_ema

TEXT = """
It was the best of times, it was the worst of times, it was the age of wisdom, it was
the age of foolishness, it was the epoch of belief, it was the epoch of incredulity, it
was the season of Light, it was the season of Darkness, it was the spring of hope, it
was the winter of despair, we had everything before us, we had nothing before us.
"""
LENGTH = 32


def rows() -> list[dict[str, torch.Tensor]]:
    """Windows of letters, each of which predicts its next ones."""
    letters = sorted(set(TEXT))
    codes = torch.tensor([letters.index(letter) for letter in TEXT])
    windows = codes.unfold(0, LENGTH, 4)
    return [{"input_ids": window, "labels": window} for window in windows]


def main() -> None:
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(
        num_train_epochs=2,
        learning_rate=3e-3,
        eval_strategy="epoch",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    (args,) = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    config = GPT2Config(
        vocab_size=len(set(TEXT)), n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2
    )
    data = rows()
    trainer = Trainer(
        GPT2LMHeadModel(config), args, train_dataset=data[::2], eval_dataset=data[1::2]
    )
    switch_ema.trial(trainer)  # ends epochs, and measures at each evaluation
    trainer.train()
    trainer.save_model()
    print(f"loss {trainer.evaluate()['eval_loss']:.3f}")


if __name__ == "__main__":
    main()
