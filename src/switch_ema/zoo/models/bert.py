"""BERT as a text classifier and as a language model, from transformers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError

if TYPE_CHECKING:
    from transformers import BertConfig

PAD = 0
"""The number of the token that fills short texts up."""


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
    """Describe a BERT with a vocabulary of ``words`` tokens.

    Args:
        size: Of the network.
        words: Size of the vocabulary.
        pad: The token that fills short texts up: its embedding is zero and not trained.
            None if every token is one of the text.
        **options: Further options of ``BertConfig``.
    """
    with needed("transformers", "bench", user="BERT", error=UsageError):
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
    """BERT, the mean over a text's tokens, and a head with one hidden layer.

    This is the classifier of USB (Wang et al., 2022), except that tokens which only
    fill a text up are left out of the mean. https://arxiv.org/abs/2208.07204

    Args:
        config: Of the encoder.
        classes: Outputs.
    """

    def __init__(self, config: "BertConfig", classes: int) -> None:
        super().__init__()
        from transformers import BertModel

        self.bert = BertModel(config)  # type: ignore[no-untyped-call]
        # Unused here, and a parameter without a gradient would trouble some optimizers.
        self.bert.pooler = None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.head = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.GELU(),
            nn.Linear(config.hidden_size, classes),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of texts, which are filled up with ``PAD``."""
        there = tokens != PAD
        longest = int(there.sum(1).max())  # what lies behind is read for nothing
        tokens, there = tokens[:, :longest], there[:, :longest]
        read = self.bert(tokens, attention_mask=there.long()).last_hidden_state
        weight = there.unsqueeze(-1).to(read.dtype)
        mean = (self.dropout(read) * weight).sum(1) / weight.sum(1).clamp(min=1)
        return cast(Tensor, self.head(mean))

    def group_matcher(self, coarse: bool = False) -> Mapping[str, Any]:
        """Say which parameters belong to which layer, as timm's models do."""
        return {
            "stem": r"^bert\.embeddings",
            "blocks": r"^bert\.encoder\.layer\.(\d+)",
        }


class CausalBert(nn.Module):
    """BERT with masked attention: each token is predicted from those before it.

    Args:
        config: Of a decoder; the classifier shares the weights of the embedding.
    """

    def __init__(self, config: "BertConfig") -> None:
        super().__init__()
        from transformers import BertLMHeadModel

        self.bert = BertLMHeadModel(config)  # type: ignore[no-untyped-call]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after each; the batch comes first."""
        return cast(Tensor, self.bert(tokens, use_cache=False).logits)


def encoder_weights(folder: str) -> dict[str, Tensor]:
    """Read the weights of a pre-trained encoder, named as in :class:`BertClassifier`.

    Args:
        folder: With config.json and weights as transformers saves them, or a name on
            its hub.

    Raises:
        OSError: It can be had neither from disk nor from the hub.
    """
    from transformers import AutoModel

    found = AutoModel.from_pretrained(folder)
    weights = found.state_dict().items()
    return {
        f"bert.{name}": value
        for name, value in weights
        if not name.startswith("pooler.")
    }
