"""Tasks of the zoo in float64, whose only metric is a number that sums up the weights.

In float64, trainings by one process and by several workers differ by rounding of 1e-16
only, in spite of batch norm and of Adam, which amplifies tiny gradients.
"""

from dataclasses import replace

from torch import nn

from switch_ema.bench.task import Metric
from switch_ema.zoo.models.awd_lstm import AWDLSTM, AWDDropout
from switch_ema.zoo.tasks.classification.classification import Classification
from switch_ema.zoo.tasks.detection.retinanet import RetinaNet
from switch_ema.zoo.tasks.detection.yolox import YoloX
from switch_ema.zoo.tasks.language.awd_lstm import AWDLanguageModel
from switch_ema.zoo.tasks.ssl.a2mim import A2MIM
from switch_ema.zoo.tasks.ssl.barlow_twins import BarlowTwins
from switch_ema.zoo.tasks.ssl.byol import BYOL
from switch_ema.zoo.tasks.ssl.moco_v2 import MoCoV2
from switch_ema.zoo.tasks.ssl.moco_v3 import MoCoV3
from switch_ema.zoo.tasks.ssl.simclr import SimCLR


class _Double:
    metrics = (Metric(name="weights", higher_is_better=True),)

    def model(self):
        return super().model().double()

    def evaluate(self, model):
        total = sum(float(p.abs().sum()) for p in model.state_dict().values())
        return {"weights": total}

    def trivial(self):
        return {}


class _Views(_Double):
    def _draw(self, images, generator):
        views = super()._draw(images, generator)
        return tuple(v.double() if v.is_floating_point() else v for v in views)


class FileViews64(_Double, SimCLR):
    """Without the batch norm of ResNets: a transformer."""

    networks = ("deit-t",)

    def embed(self, model, batch):
        return super().embed(model, [view.double() for view in batch])


class _ToDouble(nn.Module):
    def forward(self, images):
        return images.double()


class Files64(Classification):
    """Reads images from files, augments and blends them; drops no layers."""

    def model(self):
        changes = {"stochastic_depth": 0.0, "mixup": 0.8, "cutmix": 1.0}
        self.procedure, self.batch = replace(self.procedure, **changes), 10
        return nn.Sequential(_ToDouble(), super().model().double())


class SimCLR64(_Views, SimCLR):
    pass


class BarlowTwins64(_Views, BarlowTwins):
    pass


class BYOL64(_Views, BYOL):
    pass


class MoCoV264(_Views, MoCoV2):
    pass


class MoCoV364(_Views, MoCoV3):
    pass


class A2MIM64(_Views, A2MIM):
    pass


class AWDLSTM64(_Double, AWDLanguageModel):
    """Without dropout, which each worker draws for itself."""

    def model(self):
        return AWDLSTM(len(self.words), 4, 5, 2, AWDDropout().scaled(0.0)).double()


class _Images(_Double):
    divides_evaluation = False

    def loss(self, model, batch):
        images, targets = batch
        return super().loss(model, ([image.double() for image in images], targets))


class RetinaNet64(_Images, RetinaNet):
    pass


class YoloX64(_Images, YoloX):
    pass
