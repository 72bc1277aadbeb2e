"""An average as DPO's reference model in TRL, compared with TRL's own second model."""

import tempfile
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
)
from transformers.utils import logging
from trl import DPOConfig, DPOTrainer

from switch_ema import constant
from switch_ema.integrations.transformers import SwitchEMACallback

WORDS = ["<pad>", "good", "bad", "dog", "cat", "is"]
PAIRS = {
    "prompt": ["dog is ", "cat is "] * 8,
    "chosen": ["good good", "good"] * 8,
    "rejected": ["bad", "bad bad"] * 8,
}
DECAY = 0.9


class Reference(nn.Module):
    """The average of the policy, called as TRL calls its reference model.

    TRL replaces ``forward`` of the models that it is given; the policy, which computes
    here as well, has its replacement already.
    """

    def __init__(self, averaging: SwitchEMACallback, policy: GPT2LMHeadModel) -> None:
        super().__init__()
        self.averaging, self.config = averaging, policy.config

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        assert self.averaging.averager is not None  # created when training starts
        return self.averaging.averager.call(*inputs, **keywords)


def words() -> PreTrainedTokenizerFast:
    """A tokenizer that knows six words."""
    codes = {word: code for code, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(codes, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<pad>"
    )


def language_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(WORDS),
            n_positions=16,
            n_embd=16,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def train(
    policy: GPT2LMHeadModel,
    reference: nn.Module,
    averaging: SwitchEMACallback | None = None,
) -> DPOTrainer:
    with tempfile.TemporaryDirectory() as folder:
        trainer = DPOTrainer(
            policy,
            reference,
            args=DPOConfig(
                folder,
                num_train_epochs=3,
                per_device_train_batch_size=4,
                learning_rate=1.0,
                optim="sgd",
                # TRL's own way: mix the policy into a second model after each step.
                sync_ref_model=averaging is None,
                ref_model_sync_steps=1,
                ref_model_mixup_alpha=1 - DECAY,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                logging_strategy="epoch",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict(PAIRS),
            processing_class=words(),
            callbacks=[averaging] if averaging else [],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer


def main() -> None:
    logging.set_verbosity_error()
    disable_progress_bars()
    averaging = SwitchEMACallback("ema", decay=constant(DECAY))
    policy, other = language_model(), language_model()
    trainer = train(policy, Reference(averaging, policy), averaging)
    train(other, language_model())
    difference = max(
        (a - b).abs().max().item()
        for a, b in zip(policy.parameters(), other.parameters(), strict=True)
    )
    logs = [log for log in trainer.state.log_history if "rewards/margins" in log]
    margins = ", ".join(f"{log['rewards/margins']:.3f}" for log in logs)
    print(f"margins of the rewards in the epochs: {margins}")
    print(f"from the policy with TRL's second model it differs by {difference:.0e}")
    assert difference < 1e-6, difference


if __name__ == "__main__":
    main()
