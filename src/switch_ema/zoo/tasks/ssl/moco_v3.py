"""MoCo v3 (Chen, Xie and He, 2021)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from switch_ema.bench.task import JointLossTask, Recipe, SelfTeachingTask
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl import settings
from switch_ema.zoo.tasks.ssl.pretraining import width_of, xavier_
from switch_ema.zoo.tasks.ssl.two_views import TwoViewModel, TwoViews

TEMPERATURE = 0.2


class MoCoV3(TwoViews, JointLossTask, SelfTeachingTask):
    """MoCo v3: match the averaged model's other view in the batch, with a predictor."""

    networks = ("deit-s", "deit-t", "deit-b", "resnet18", "resnet50")
    undivided = ""
    paper = settings.MOCO_V3
    small_lr = 5e-3
    recipe = Recipe(
        epochs=7,
        schedule="cosine",
        warmup_epochs=1.0,
        methods={"ema": {"decay": 0.9}, "switch-ema": {"decay": 0.9}},
        revision=1,  # tensors without weight decay
    )

    def pool(self) -> str | None:
        """Average the patches of small images: class tokens learn too slowly."""
        return "avg" if self.scale == "small" else None

    def model(self) -> nn.Module:
        """Make encoder, projector and predictor, with a random patch projection."""
        encoder, sizes = self.encoder(), self.sizes(4096, 256)
        if hasattr(encoder, "patch_embed"):
            if self.scale == "paper":
                xavier_(encoder, separate=True)
            _prepare(encoder)
        head = need("lightly.models.modules.heads").MoCoProjectionHead
        projector = head(width_of(encoder), num_layers=3, batch_norm=True, **sizes)
        predictor = head(sizes["output_dim"], num_layers=2, batch_norm=True, **sizes)
        for part in (projector, predictor):
            part.layers[-1] = nn.BatchNorm1d(sizes["output_dim"], affine=False)
        return TwoViewModel(encoder, projector, predictor)

    def targets(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Embed both views with the teacher."""
        teacher = self.teacher(model)
        return tuple(teacher(view, part="embedder") for view in batch)

    def joint_loss(
        self,
        model: nn.Module,
        embeddings: tuple[Tensor, ...],
        targets: tuple[Tensor, ...],
    ) -> Tensor:
        """Contrast each view with the teacher's embeddings of the other views."""
        first, second = targets
        return contrast(embeddings[0], second) + contrast(embeddings[1], first)


def _prepare(vit: Any) -> None:
    """Freeze sine-cosine positions and the random patch projection, for stability."""
    utils = need("lightly.models.utils")
    utils.initialize_2d_sine_cosine_positional_embedding(
        vit.pos_embed, vit.num_prefix_tokens
    )
    vit.pos_embed.requires_grad_(False)
    vit.patch_embed.requires_grad_(False)


def contrast(queries: Tensor, keys: Tensor) -> Tensor:
    """Return ``2 * temperature`` times the cross-entropy of matching the keys."""
    similarity = normalize(queries, dim=1) @ normalize(keys, dim=1).T
    own = torch.arange(len(queries), device=queries.device)
    return 2 * TEMPERATURE * cross_entropy(similarity / TEMPERATURE, own)
