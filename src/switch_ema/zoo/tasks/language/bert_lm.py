"""Language modelling with a causal BERT: WikiText-103 in the paper's Table 12."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from switch_ema._checks import check_choice
from switch_ema.bench.task import Batches, Loader, Recipe
from switch_ema.zoo.data.splits import stream
from switch_ema.zoo.decays import DECAYS
from switch_ema.zoo.models.bert import BertSize, CausalBert, bert_config
from switch_ema.zoo.tasks.language.words import WordTask, perplexity_of


@dataclass(frozen=True)
class BertLMScale:
    """Settings of one scale: a minute on a CPU, or the published runs."""

    network: BertSize
    dataset: str
    vocabulary: int
    rarest: int
    """Words that occur less often in training count as unknown."""
    size: int | None
    test_size: int | None
    length: int
    """Words per sequence."""
    batch: int
    lr: float
    recipe: Recipe


SCALES = {
    "small": BertLMScale(
        network=BertSize(layers=2, width=64, heads=2, inner=128, positions=64),
        dataset="wikitext2",
        vocabulary=4000,
        rarest=2,
        size=100_000,
        test_size=20_000,
        length=32,
        batch=16,
        lr=2e-3,
        recipe=Recipe(
            # 195 steps per epoch: a switch keeps two thirds of an epoch's progress.
            epochs=4,
            schedule="cosine",
            warmup_epochs=0.3,
            clip=1.0,
            methods={"ema": {"decay": 0.985}, "switch-ema": {"decay": 0.985}},
        ),
    ),
    "paper": BertLMScale(
        network=BertSize(),
        dataset="wikitext103",
        vocabulary=267_735,
        rarest=1,
        size=None,
        test_size=None,
        length=512,
        batch=4,
        lr=5e-4,
        # fairseq: 2,048 words at once, accumulated 16 times, 50,000 steps including
        # 4,000 of warm-up; an epoch has 3,150.
        recipe=Recipe(
            epochs=16,
            schedule="inverse-sqrt",
            warmup_epochs=1.27,
            accumulate=16,
            methods=DECAYS[("wikitext103", "language")].options(),
        ),
    ),
}


class BertLanguageModel(WordTask):
    """Word-level language modelling with a causal BERT on WikiText.

    The network predicts each word from the previous ones in its sequence. Sequences are
    cut from the running text at a different offset in each epoch, and shuffled. Weights
    start at random, as in the paper; the classifier is tied to the embedding.

    Args:
        seed: Random seed.
        split: Evaluate on the ``test`` text or on the held-out last fifth of the
            training text (``validation``).
        scale: ``paper`` for BERT-Base on WikiText-103 in sequences of 512 words;
            ``small`` for 2 layers of width 64 on the first 100,000 words of the
            validation text of WikiText-2 in sequences of 32.
        dataset: ``wikitext103``, ``wikitext2``, ``ptb`` or ``pydoc``, instead of the
            scale's.
        size: Words of the training text, instead of the scale's.
        test_size: Words of the test text, likewise.
        vocabulary: Vocabulary size, likewise.
    """

    divides_evaluation = True

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe of the scale."""
        return scale_of(str(options.get("scale", "small"))).recipe

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        scale: str = "small",
        dataset: str | None = None,
        size: int | None = None,
        test_size: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.scale = scale_of(scale)
        self.read_texts(
            dataset or self.scale.dataset,
            ("wikitext103", "wikitext2", "ptb", "pydoc"),
            split,
            size=self.scale.size if size is None else size,
            test_size=self.scale.test_size if test_size is None else test_size,
            vocabulary=self.scale.vocabulary if vocabulary is None else vocabulary,
            rarest=self.scale.rarest,
        )
        needed = self.scale.length + 1
        for name, text in (("training", self.train), ("test", self.test)):
            if len(text) < needed:
                raise ValueError(
                    f"the {name} text must have {needed} words, got {len(text)}."
                )

    def model(self) -> nn.Module:
        """Make the network."""
        # Texts are not padded; index 0 is the unknown word.
        words = len(self.words)
        return CausalBert(
            bert_config(self.scale.network, words, pad=None, is_decoder=True)
        )

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make AdamW with fairseq's settings."""
        return AdamW(
            model.parameters(), lr=self.scale.lr, betas=(0.9, 0.98), weight_decay=0.01
        )

    def train_loader(self, epoch: int) -> Loader:
        """Cut the text at a different offset in each epoch; shuffle the sequences."""
        generator = stream(self.seed, f"start of epoch {epoch}")
        start = int(torch.randint(len(self.train), (), generator=generator))
        length = self.scale.length
        words, following = (
            TextRows(self.train, length, start + offset) for offset in (0, 1)
        )
        return Batches((words, following), self.scale.batch, self.seed, epoch=epoch)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy of the next words."""
        words, following = batch
        loss: Tensor = model(words, following)
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure the perplexity of the text, sequence by sequence."""
        device = next(model.parameters()).device
        words, following = (
            TextRows(self.test, self.scale.length, offset) for offset in (0, 1)
        )
        batches = torch.split(torch.arange(len(words)), 16)
        losses = [
            (
                float(
                    model(words[which].to(device), following[which].to(device), "sum")
                ),
                self.scale.length * len(which),
            )
            for which in batches[self.shard.share(len(batches))]
        ]
        return perplexity_of(self.shard.gather_items(losses))

    def shorten_evaluation(self, examples: int) -> int:
        """Keep the first sequences of the evaluation text."""
        self.test = self.test[: examples * self.scale.length + 1]
        return len(self.test) - 1

    def initial_weights(self) -> tuple[Mapping[str, Tensor], str]:
        """Report that the weights are random."""
        return {}, "random weights"


class TextRows:
    """Rows of consecutive words of a text that ends where it begins, read on access.

    Args:
        text: Word indices, perhaps mapped from a file.
        length: Words per row.
        start: Index of the first word.

    >>> rows = TextRows(torch.arange(8), length=3, start=6)
    >>> len(rows), rows[torch.tensor([0, 1])].tolist()
    (2, [[6, 7, 0], [1, 2, 3]])
    """

    def __init__(self, text: Tensor, length: int, start: int) -> None:
        self._text, self._length, self._start = text, length, start

    def __len__(self) -> int:
        # Each word of a row needs a following one.
        return (len(self._text) - 1) // self._length

    def __getitem__(self, rows: Tensor) -> Tensor:
        begins = self._start + rows * self._length
        places = begins[:, None] + torch.arange(self._length)
        return self._text[places % len(self._text)].long()


def scale_of(name: str) -> BertLMScale:
    """Look up a scale."""
    return SCALES[check_choice("scale", name, tuple(SCALES))]
