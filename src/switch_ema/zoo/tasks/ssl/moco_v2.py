"""MoCo v2 (Chen, Fan, Girshick and He, 2020)."""

from typing import Any, cast

from torch import Tensor, nn

from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.task import JointLossTask, SelfTeachingTask
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl import settings
from switch_ema.zoo.tasks.ssl.pretraining import width_of
from switch_ema.zoo.tasks.ssl.two_views import TwoViewModel, TwoViews

TEMPERATURE = 0.2


class _QueueModel(TwoViewModel):
    """Encoder, projector, and the queue of the teacher's latest embeddings.

    The queue is a buffer of the model, so checkpoints include it. It belongs to
    lightly's loss, which reads and fills it.
    """

    def __init__(
        self, encoder: nn.Module, projector: nn.Module, queue: tuple[int, int]
    ) -> None:
        super().__init__(encoder, projector)
        self.queue = need("lightly.loss").NTXentLoss(
            TEMPERATURE, memory_bank_size=queue
        )
        bank = self.queue.memory_bank
        for name, tensor in list(bank.named_buffers()):
            # lightly leaves its queue out of state dicts, but resuming needs it.
            bank.register_buffer(name, tensor, persistent=True)


class MoCoV2(TwoViews, JointLossTask, SelfTeachingTask):
    """MoCo v2: match the averaged model's other view against a queue of negatives.

    Batch norm has the statistics of the whole batch, with several workers too. So there
    is nothing to shuffle between workers: MoCo shuffles because each of its GPUs
    normalises its own part, which tells which query and key are from the same image.
    """

    undivided = ""
    paper = settings.MOCO_V2
    final_decay = 0.999
    memory = ("queue",)

    def model(self) -> nn.Module:
        """Make encoder, projector and queue."""
        encoder, sizes = self.encoder(), self.sizes(2048, 128)
        head = need("lightly.models.modules.heads").MoCoProjectionHead
        projector = head(width_of(encoder), **sizes)
        queue = 2 * self.batch if self.scale == "small" else 65_536
        return _QueueModel(encoder, projector, (queue, sizes["output_dim"]))

    def embed(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Embed the first view."""
        first, _ = batch
        queries: tuple[Tensor, ...] = model(first)
        return queries

    def targets(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Embed the second view with the teacher."""
        _, second = batch
        return (self.teacher(model)(second, part="embedder"),)

    def joint_loss(
        self,
        model: nn.Module,
        embeddings: tuple[Tensor, ...],
        targets: tuple[Tensor, ...],
    ) -> Tensor:
        """Match the teacher's view of each image against the queue, then enqueue it."""
        queue = cast(_QueueModel, unwrap(model)).queue
        return cast(Tensor, queue(*embeddings, *targets))
