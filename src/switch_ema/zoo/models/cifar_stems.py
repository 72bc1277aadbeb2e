"""Stems for images of 32 by 32 pixels, for networks made for large images.

The stem of an ImageNet network shrinks the image four times before the first block
sees it, which leaves too little of a CIFAR image. Here it becomes a 3x3 convolution and
no pooling. Its stride is 1 as in the code released with Switch EMA; Appendix B.1 of the
paper says that the stem halves the image, which is a stride of 2.
"""

from typing import Any

from torch import nn

# The models are timm's, whose annotations do not allow other layers in their places.


def resnet_for_cifar(model: Any, stride: int = 1) -> None:
    """Give a ResNet or ResNeXt a 3x3 stem without pooling."""
    model.conv1 = _stem(model.in_chans, model.bn1.num_features, stride, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


def densenet_for_cifar(model: Any, stride: int = 1) -> None:
    """Give a DenseNet a bare 3x3 stem: the first block normalises for itself."""
    width = model.features.conv0.out_channels
    model.features.conv0 = _stem(model.in_chans, width, stride, bias=False)
    nn.init.kaiming_normal_(model.features.conv0.weight)
    model.features.norm0 = nn.Identity()
    model.features.pool0 = nn.Identity()


def convnext_for_cifar(model: Any, stride: int = 1) -> None:
    """Put a 3x3 convolution in the place of the 4x4 patches."""
    width = model.stem[0].out_channels
    model.stem[0] = _stem(model.in_chans, width, stride, bias=True)
    nn.init.trunc_normal_(model.stem[0].weight, std=0.02)
    nn.init.zeros_(model.stem[0].bias)


def vgg_for_cifar(model: Any) -> None:
    """Classify the pooled features of a VGG with one linear layer.

    The two hidden layers of 4096 are made for maps of 7x7; from 32 by 32 pixels one
    position is left. The convolutions stay as they are.
    """
    model.pre_logits = nn.Identity()
    model.head.fc = nn.Linear(model.num_features, model.num_classes)
    model.head_hidden_size = model.num_features


def _stem(before: int, width: int, stride: int, *, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=bias)
