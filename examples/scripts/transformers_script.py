"""An ordinary Transformers script, with one line for switch-ema.

    python examples/scripts/transformers_script.py --output_dir counting

trains as usual. This compares methods on it, each training in its own folder:

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

LENGTH, WORDS = 16, 23


def rows(first: int, last: int) -> list[dict[str, torch.Tensor]]:
    """Sequences that count by 1, 2, ...: the model must infer the step."""
    found = []
    for number in range(first, last):
        words = (number + torch.arange(LENGTH) * (1 + number % 5)) % WORDS
        found.append({"input_ids": words, "labels": words})
    return found


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
        vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2
    )
    trainer = Trainer(
        GPT2LMHeadModel(config),
        args,
        train_dataset=rows(0, 80),
        eval_dataset=rows(80, 115),
    )
    switch_ema.trial(trainer)  # ends epochs and evaluates at each evaluation
    trainer.train()
    trainer.save_model()
    print(f"loss {trainer.evaluate()['eval_loss']:.3f}")


if __name__ == "__main__":
    main()
