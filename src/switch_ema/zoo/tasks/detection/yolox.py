"""YOLOX (Table 7)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.groups import parameter_groups
from switch_ema.bench.task import CONTROL_EPOCHS, Loader
from switch_ema.zoo.data.boxes import MosaicMixUp
from switch_ema.zoo.models.detection.yolox import YOLOX, small_yolox, yolox_s
from switch_ema.zoo.models.pretrained import NONE
from switch_ema.zoo.tasks.detection.batches import Batch, DetectionLoader
from switch_ema.zoo.tasks.detection.detection import Detection
from switch_ema.zoo.tasks.detection.settings import SmallTraining


class YoloX(Detection):
    """Object detection with YOLOX from scratch: Mosaic, MixUp, SimOTA.

    ``Detection`` describes the options; the backbone is YOLOX's own. The last epochs of
    the schedule (15 of 300) drop Mosaic and MixUp and add an L1 loss on the boxes.
    """

    revision = 2  # shorter shifts of mosaics, mirrored partners of MixUp
    augmentation = (
        "Mosaic (rotation by 10 degrees, shear by 2, scale 0.1 to 2, shift by 0.1), "
        "MixUp (scale 0.5 to 1.5, mirrored), colours, flips; colours and flips alone "
        "in the last epochs; sides of 480 to 800 pixels"
    )
    usual_schedule = "yolox-300"
    small = SmallTraining(
        epochs={"yolox-300": 12},
        size=240,
        batch=8,  # batch normalisation needs more than a few images
        learning_rate=4e-3,
        plain_epochs=3,
    )

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        dataset: str = "shapes",
        scale: str = "small",
        schedule: str | None = None,
        size: int | None = None,
        test_size: int | None = None,
        image_size: int | None = None,
        batch: int | None = None,
        workers: int | None = None,
    ) -> None:
        super().__init__(
            seed,
            split=split,
            dataset=dataset,
            scale=scale,
            schedule=schedule,
            size=size,
            test_size=test_size,
            image_size=image_size,
            batch=batch,
            weights=NONE,  # trained from scratch, as published
            workers=workers,
        )
        if self.is_small and self.crop:
            raise UsageError(
                f"yolox needs whole images, but {dataset} trains on crops."
            )
        plain = self.small.plain_epochs if self.is_small else self.schedule.plain_epochs
        epochs = (
            self.small.epochs[self.schedule_name]
            if self.is_small
            else self.schedule.epochs
        )
        self.mosaic_epochs = epochs - plain
        self.use_l1 = False
        self._loader: tuple[bool, DetectionLoader] | None = None

    @classmethod
    def start_for(cls, options: Mapping[str, Any]) -> str:
        """Describe the start: random weights."""
        return super().start_for({**options, "weights": NONE})

    def detector(self) -> nn.Module:
        """Make the network."""
        if self.is_small:
            return small_yolox(self.data.classes, side=self.side)
        if self.image_size is None:
            return yolox_s(self.data.classes)
        side = -(-self.image_size // 32) * 32
        return yolox_s(self.data.classes, side=side, sides=(side,))

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make AdamW at small scale, otherwise SGD; vectors get no weight decay."""
        if self.is_small:
            return super().optimizer(model)
        groups = parameter_groups(model, decay_all=False)
        return SGD(groups, lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)

    def train_loader(self, epoch: int) -> Loader:
        """Apply Mosaic and MixUp, except in the last epochs."""
        mixes = epoch % CONTROL_EPOCHS < self.mosaic_epochs
        self.use_l1 = not mixes
        if self._loader is None or self._loader[0] != mixes:
            self._loader = (mixes, self._make_mosaics(mixes))
        return self._loader[1].epoch(epoch)

    def _make_mosaics(self, mixes: bool) -> DetectionLoader:
        side = self.side if self.is_small else self.image_size or 640
        # At 64 pixels a mosaic leaves few shapes large enough: use it on half of them.
        share, scale = (0.5, (0.5, 1.5)) if self.is_small else (1.0, (0.1, 2.0))
        examples = MosaicMixUp(
            self.data.train,
            side,
            scale=scale,
            mosaic=share if mixes else 0.0,
            mixup=share,
        )
        return self.make_loader(examples, None)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the losses."""
        inner = getattr(model, "module", model)
        assert isinstance(inner, YOLOX)
        inner.use_l1 = self.use_l1
        return super().loss(model, batch)
