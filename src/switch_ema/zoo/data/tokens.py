"""Texts as numbers: a WordPiece tokenizer, trained on the training text or given."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""As BERT has them; the first has the number 0."""


def train_tokenizer(texts: Sequence[str], size: int) -> "Tokenizer":
    """Train a WordPiece tokenizer as BERT's: lower case, no accents.

    The result depends on the texts and the size alone.

    Args:
        texts: The training texts.
        size: At most this many tokens, the special ones included.
    """
    with needed("tokenizers", "bench", user="BERT", error=UsageError):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    def with_model(model: models.WordPiece) -> Tokenizer:
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    learner = with_model(models.WordPiece(unk_token="[UNK]"))
    letters = sorted(set(learner.normalizer.normalize_str(" ".join(texts))))
    # Letters inside of words are numbered in the order of a hash table, on which the
    # choice between equally frequent pairs depends: they are given beforehand.
    inside = [f"##{letter}" for letter in letters if not letter.isspace()]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[*_SPECIAL, *inside], show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    return with_model(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))


def read_tokenizer(folder: str) -> "Tokenizer":
    """Read the tokenizer of a pre-trained model.

    Args:
        folder: With tokenizer.json, or a name on the hub of transformers.

    Raises:
        OSError: It can be had neither from disk nor from the hub.
    """
    from tokenizers import Tokenizer

    file = Path(folder) / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    from transformers import AutoTokenizer

    found: Tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    return found


def encode(tokenizer: "Tokenizer", texts: Sequence[str], length: int) -> Tensor:
    """Turn texts into rows of ``[CLS] tokens [SEP]``, cut or filled up with 0."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    first, last = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    rows = torch.zeros(len(texts), length, dtype=torch.long)
    encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    for row, text in zip(rows, encoded, strict=True):
        ids = [first, *text.ids[: length - 2], last]
        row[: len(ids)] = torch.tensor(ids)
    return rows
