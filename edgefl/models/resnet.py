"""ResNet-18 and ResNet-34 for 32×32 images, with a 3×3 stem and no max-pool (FedHM, Tables 5 and 6), and ResNet-9 (Factorized-FL)."""

import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.models.base import image_shape, scaled
from edgefl.models.norm import norm2d
from edgefl.registry import model


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = norm2d(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = norm2d(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm2d(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h/stride, w/stride)."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Four stages of basic blocks with 64, 128, 256 and 512 channels at width 1.

    Attributes:
        hybrid_dense: layers that low-rank methods never factorize.
        basis_like: layer → layer whose R₁ it takes in FLANC: the convolutions of a stage's first block have bases of one size.
    """

    def __init__(
        self, blocks: tuple[int, ...], dense: tuple[str, ...], channels: int, classes: int, width: float, norm: str
    ) -> None:
        super().__init__()
        self.hybrid_dense = dense
        self.basis_like = {f"layer{stage}.0.conv2": f"layer{stage}.0.conv1" for stage in (1, 2, 3, 4)}
        outputs = [scaled(c, width) for c in (64, 128, 256, 512)]
        self.conv1 = nn.Conv2d(channels, outputs[0], 3, 1, 1, bias=False)
        self.norm1 = norm2d(norm, outputs[0])
        inputs = [outputs[0], *outputs]
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(
                BasicBlock(inputs[i], outputs[i], 1 if i == 0 else 2, norm),
                *(BasicBlock(outputs[i], outputs[i], 1, norm) for _ in range(blocks[i] - 1)),
            )
            for i in range(4)
        )
        self.fc = nn.Linear(outputs[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


@model("resnet18", usual_input=(3, 32, 32))
def resnet18(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "static") -> nn.Module:
    """Return ResNet-18: 11,173,962 parameters for 3×32×32, 10 classes. FedHM does not factorize its first residual block (ρ = 2)."""
    channels = image_shape("resnet18", input_shape, 8)[0]
    return ResNet((2, 2, 2, 2), ("layer1.0",), channels, classes, width, norm)


@model("resnet34", usual_input=(3, 32, 32))
def resnet34(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "static") -> nn.Module:
    """Return ResNet-34: 21.33 M parameters for 3×32×32, 100 classes. FedHM does not factorize layers 1 and 2 (ρ = 15)."""
    channels = image_shape("resnet34", input_shape, 8)[0]
    return ResNet((3, 4, 6, 3), ("layer1", "layer2"), channels, classes, width, norm)


class ConvBlock(nn.Module):
    """A convolution padded by half its kernel, normalisation and ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = norm2d(norm, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h/stride, w/stride)."""
        return F.relu(self.norm(self.conv(x)))


class ResNet9(nn.Module):
    """Channels 64, 128, 128, 128, 256, 256, 256, 256 at width 1; convolutions 3 and 4, and 6 and 7, have a shortcut around them."""

    def __init__(self, channels: int, classes: int, width: float, norm: str) -> None:
        super().__init__()
        a, b, c = (scaled(n, width) for n in (64, 128, 256))
        self.conv1 = ConvBlock(channels, a, 3, 1, norm)
        self.conv2 = ConvBlock(a, b, 5, 2, norm)
        self.conv3, self.conv4 = ConvBlock(b, b, 3, 1, norm), ConvBlock(b, b, 3, 1, norm)
        self.conv5 = ConvBlock(b, c, 3, 1, norm)
        self.conv6, self.conv7, self.conv8 = (ConvBlock(c, c, 3, 1, norm) for _ in range(3))
        self.fc = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = self.conv2(self.conv1(x))
        x = x + self.conv4(self.conv3(x))
        x = F.max_pool2d(self.conv5(x), 2)
        x = x + self.conv7(self.conv6(x))
        return self.fc(self.conv8(x).amax((2, 3)))


@model("resnet9", usual_input=(3, 32, 32))
def resnet9(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "static") -> nn.Module:
    """Return ResNet-9: 2,571,338 parameters for 3×32×32, 10 classes (Factorized-FL, Appendix C.1: 2.57 M).

    The paper leaves these choices open: every convolution pads by half its kernel, has no bias, and is followed by static BatchNorm and
    ReLU. The shortcuts go around convolutions 3 and 4, and 6 and 7. The classifier has a bias.
    """
    return ResNet9(image_shape("resnet9", input_shape, 4)[0], classes, width, norm)
