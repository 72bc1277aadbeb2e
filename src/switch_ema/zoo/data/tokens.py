"""WordPiece tokenizers, trained on the training text or pre-trained."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""BERT's special tokens; the first has index 0."""
_AT_ONCE = 2000
"""Texts that are encoded at a time."""


def train_tokenizer(texts: Iterable[str], size: int) -> "Tokenizer":
    """Train a WordPiece tokenizer like BERT's: lower case, no accents.

    The result depends only on the texts and the size.

    Args:
        texts: The training texts, iterated twice.
        size: Maximum vocabulary size, including the special tokens.
    """
    with needed("tokenizers", "language", user="BERT", error=UsageError):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    def with_model(model: models.WordPiece) -> Tokenizer:
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    learner = with_model(models.WordPiece(unk_token="[UNK]"))
    letters = sorted(_letters(texts, learner.normalizer.normalize_str))
    # The trainer numbers letters inside words in hash order, and ties between equally
    # frequent pairs depend on it; passing the letters makes training deterministic.
    inside = [f"##{letter}" for letter in letters if not letter.isspace()]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[*_SPECIAL, *inside], show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    return with_model(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))


def read_tokenizer(folder: str) -> "Tokenizer":
    """Read the tokenizer of a pre-trained model.

    Args:
        folder: Folder with tokenizer.json, or a name on the Hugging Face Hub.

    Raises:
        OSError: Found neither on disk nor on the hub.
    """
    from tokenizers import Tokenizer

    file = Path(folder) / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    from transformers import AutoTokenizer

    found: Tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    return found


def encode(tokenizer: "Tokenizer", texts: Sequence[str], length: int) -> Tensor:
    """Encode texts as rows ``[CLS] tokens [SEP]``, truncated or padded with 0."""
    rows = torch.zeros(len(texts), length, dtype=torch.long)
    for row, ids in zip(rows, encoded_ids(tokenizer, texts, length), strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return rows


def encoded_ids(
    tokenizer: "Tokenizer", texts: Sequence[str], length: int
) -> Iterator[list[int]]:
    """Yield the tokens of each text, ``[CLS] tokens [SEP]``, truncated."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    first, last = (tokenizer.token_to_id(name) or 0 for name in ("[CLS]", "[SEP]"))
    for begin in range(0, len(texts), _AT_ONCE):  # encodings take much memory
        part = list(texts[begin : begin + _AT_ONCE])
        for text in tokenizer.encode_batch_fast(part, add_special_tokens=False):
            yield [first, *text.ids[: length - 2], last]


def _letters(texts: Iterable[str], normalised: Callable[[str], str]) -> set[str]:
    letters: set[str] = set()
    for text in texts:
        letters.update(text)
    # Normalising a letter depends on no other letter.
    return set(normalised(" ".join(sorted(letters))))
