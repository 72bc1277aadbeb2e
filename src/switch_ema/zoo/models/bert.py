"""BERT as a text classifier and as a language model, from transformers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.models.chunked_loss import chunked_cross_entropy

if TYPE_CHECKING:
    from transformers import BertConfig

PAD = 0
"""Index of the padding token."""


@dataclass(frozen=True, kw_only=True)
class BertSize:
    """The shape of a BERT; the defaults are those of BERT-Base."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    inner: int = 3072
    positions: int = 512
    dropout: float = 0.1


def bert_config(
    size: BertSize, words: int, *, pad: int | None = PAD, **options: Any
) -> "BertConfig":
    """Make the configuration of a BERT with a vocabulary of ``words`` tokens.

    Args:
        size: Size of the network.
        words: Size of the vocabulary.
        pad: The padding token, whose embedding stays zero; None if texts are not
            padded.
        **options: Further options of ``BertConfig``.
    """
    with needed("transformers", "language", user="BERT", error=UsageError):
        from transformers import BertConfig

    return BertConfig(
        vocab_size=words,
        num_hidden_layers=size.layers,
        hidden_size=size.width,
        num_attention_heads=size.heads,
        intermediate_size=size.inner,
        max_position_embeddings=size.positions,
        hidden_dropout_prob=size.dropout,
        attention_probs_dropout_prob=size.dropout,
        pad_token_id=pad,
        **options,
    )


class BertClassifier(nn.Module):
    """BERT, mean pooling over tokens, and a head with one hidden layer.

    This is USB's classifier (Wang et al., 2022), except that the mean leaves out
    padding. https://arxiv.org/abs/2208.07204

    Args:
        config: Configuration of the encoder.
        classes: Outputs.
    """

    def __init__(self, config: "BertConfig", classes: int) -> None:
        super().__init__()
        from transformers import BertModel

        self.bert = BertModel(config)  # type: ignore[no-untyped-call]
        # Unused here, and some optimizers fail on parameters without gradients.
        self.bert.pooler = None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.head = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.GELU(),
            nn.Linear(config.hidden_size, classes),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of texts padded with ``PAD``."""
        there = tokens != PAD
        longest = int(there.sum(1).max())  # the columns beyond are all padding
        tokens, there = tokens[:, :longest], there[:, :longest]
        read = self.bert(tokens, attention_mask=there.long()).last_hidden_state
        weight = there.unsqueeze(-1).to(read.dtype)
        mean = (self.dropout(read) * weight).sum(1) / weight.sum(1).clamp(min=1)
        return cast(Tensor, self.head(mean))

    def group_matcher(self, coarse: bool = False) -> Mapping[str, Any]:
        """Return the layer of each parameter, as timm's models do."""
        return {
            "stem": r"^bert\.embeddings",
            "blocks": r"^bert\.encoder\.layer\.(\d+)",
        }


class CausalBert(nn.Module):
    """BERT with causal attention: predicts each token from the previous ones.

    Args:
        config: Configuration of a decoder; the classifier is tied to the embedding.
    """

    def __init__(self, config: "BertConfig") -> None:
        super().__init__()
        from transformers import BertLMHeadModel

        self.bert = BertLMHeadModel(config)  # type: ignore[no-untyped-call]

    def forward(
        self, tokens: Tensor, following: Tensor | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the logits of each next token, or the loss of those that follow.

        The loss never needs the logits of all tokens at once: with a vocabulary of
        267,735 words, those of 2,048 tokens take 2.2 GB.

        Args:
            tokens: The batch is the first dimension.
            following: The next tokens, of the same shape.
            reduction: ``mean`` or ``sum`` of the loss.
        """
        if following is None:
            return cast(Tensor, self.bert(tokens, use_cache=False).logits)
        read = self.bert.bert(tokens, use_cache=False).last_hidden_state
        head = self.bert.cls.predictions
        return chunked_cross_entropy(
            head.transform(read).flatten(0, 1),
            head.decoder.weight,
            head.decoder.bias,
            following.flatten(),
            reduction=reduction,
        )


def encoder_weights(folder: str) -> dict[str, Tensor]:
    """Read the weights of a pre-trained encoder, named as in :class:`BertClassifier`.

    Args:
        folder: Folder with config.json and weights saved by transformers, or a name on
            the Hugging Face Hub.

    Raises:
        OSError: Found neither on disk nor on the hub.
    """
    from transformers import AutoModel

    found = AutoModel.from_pretrained(folder)
    weights = found.state_dict().items()
    return {
        f"bert.{name}": value
        for name, value in weights
        if not name.startswith("pooler.")
    }
