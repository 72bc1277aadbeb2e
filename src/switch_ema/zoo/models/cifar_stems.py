"""Stems for 32 by 32 images, for networks designed for large images.

An ImageNet network's stem downsamples by four before the first block, which leaves too
little of a CIFAR image. These stems are a 3x3 convolution without pooling. The stride
is 1, as in the code released with Switch EMA; Appendix B.1 of the paper says that the
stem halves the image, which is a stride of 2.
"""

from typing import Any

from torch import nn

# timm's annotations do not allow replacing these layers by others.


def resnet_for_cifar(model: Any, stride: int = 1) -> None:
    """Give a ResNet or ResNeXt a 3x3 stem without pooling."""
    model.conv1 = _stem(model.in_chans, model.bn1.num_features, stride, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


def densenet_for_cifar(model: Any, stride: int = 1) -> None:
    """Give a DenseNet a bare 3x3 stem; the first block does the normalisation."""
    width = model.features.conv0.out_channels
    model.features.conv0 = _stem(model.in_chans, width, stride, bias=False)
    nn.init.kaiming_normal_(model.features.conv0.weight)
    model.features.norm0 = nn.Identity()
    model.features.pool0 = nn.Identity()


def convnext_for_cifar(model: Any, stride: int = 1) -> None:
    """Replace the 4x4 patches by a 3x3 convolution."""
    width = model.stem[0].out_channels
    model.stem[0] = _stem(model.in_chans, width, stride, bias=True)
    nn.init.trunc_normal_(model.stem[0].weight, std=0.02)
    nn.init.zeros_(model.stem[0].bias)


def vgg_for_cifar(model: Any) -> None:
    """Replace a VGG's classifier by one linear layer on pooled features.

    The two hidden layers of 4096 expect 7x7 maps; a 32 by 32 image leaves one position.
    The convolutions stay the same.
    """
    model.pre_logits = nn.Identity()
    model.head.fc = nn.Linear(model.num_features, model.num_classes)
    model.head_hidden_size = model.num_features


def _stem(before: int, width: int, stride: int, *, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=bias)
