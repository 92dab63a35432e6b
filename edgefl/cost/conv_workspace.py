"""Memory that torch's convolutions allocate on a CPU while they run, by the shapes of their tensors.

oneDNN copies images into blocks of 16 channels (8 for some gradients) and back, and weights likewise; channels are padded to whole
blocks. Convolutions without a blocked kernel are products over unrolled images (im2col). Small ones skip oneDNN. The rules are those
of torch 2.13 on one thread of a processor with AVX-512; elsewhere blocks are smaller.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_BLOCK, _SMALL_BLOCK = 16, 8
_WIDEST = 14  # columns of a kernel that oneDNN's own kernels compute
_FEW_VALUES = 20480  # in the input of a single sample, below which torch uses its own kernel
_SLICES = 4  # copies of a weight's gradient that the product over unrolled images sums up
_TABLE_BYTES = 8216  # of kernels that are many small products; with strides, at least:
_STRIDED_TABLE_BYTES, _WIDE_TABLE_BYTES = 36888, 57368  # a stride of 2, or more


@dataclass(frozen=True)
class _Convolution:
    """A plain convolution, or for a transposed one the convolution that it is the gradient of. It maps ``inputs`` to ``outputs`` channels.

    Attributes:
        inputs, outputs: channels of one group.
        kernel: sides.
        positions: of the input and of the output of one sample.
        plane: positions of one depth of the output.
        stride: the largest one.
    """

    batch: int
    groups: int
    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    positions: tuple[int, int]
    plane: int
    stride: int
    dilated: bool
    element_bytes: int

    @property
    def strided(self) -> bool:
        return self.stride > 1

    @property
    def area(self) -> int:
        return math.prod(self.kernel)

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.inputs == self.outputs == 1

    @property
    def pointwise(self) -> bool:
        return self.area == 1

    def image(self, channels: int, end: int) -> int:
        """Bytes of the images at an ``end``, 0 for inputs and 1 for outputs, with so many channels."""
        return self.batch * channels * self.positions[end] * self.element_bytes

    def weight(self, inputs: int, outputs: int) -> int:
        """Bytes of a weight with so many channels in each group."""
        return self.groups * inputs * outputs * self.area * self.element_bytes

    @property
    def plain(self) -> tuple[int, int, int]:
        """Bytes of input, output and weight as torch holds them."""
        ends = self.image(self.groups * self.inputs, 0), self.image(self.groups * self.outputs, 1)
        return *ends, self.weight(self.inputs, self.outputs)

    def blocked(self, block: int, inputs: int = 0) -> tuple[int, int, int]:
        """Bytes of input, output and weight in blocks; channels of groups are not padded. ``inputs``: of the weight, if not padded."""
        if self.depthwise:
            groups = _padded(self.groups, block)
            return self.image(groups, 0), self.image(groups, 1), groups * self.area * self.element_bytes
        if self.groups > 1:
            return self.plain
        into, out = _padded(self.inputs, block), _padded(self.outputs, block)
        return self.image(into, 0), self.image(out, 1), self.weight(inputs or into, out)

    @property
    def unrolled(self) -> int:
        """Bytes of one plane of one group of one sample, a copy for each place in the kernel."""
        pointwise = self.pointwise and not self.strided
        return 0 if pointwise else self.inputs * self.area * self.plane * self.element_bytes

    @property
    def columns(self) -> int:
        """Bytes of the unrolled images of a batch, for torch's own kernel."""
        return 0 if self.pointwise and not self.strided else self.image(self.inputs * self.area, 1)

    @property
    def gathered(self) -> int:
        """Bytes of one sample's image at the strides of a 1×1 convolution."""
        return self.unrolled if self.pointwise and self.groups == 1 else 0

    def fits(self, block: int) -> bool:
        """Whether the channels of its groups are whole blocks."""
        return self.groups == 1 or self.depthwise or (self.inputs % block == self.outputs % block == 0)

    def forward(self) -> int:
        """Most bytes at once of the output, with copies."""
        output = self.plain[1]
        few = self.groups == 1 and self.inputs < (_SMALL_BLOCK if self.pointwise else _BLOCK)
        image, made, weight = self.blocked(_BLOCK, self.inputs if few else 0)
        far = self.strided and self.dilated and len(self.kernel) == 3  # by either kernel: the larger sum is a bound
        if not self.fits(4) or (self.depthwise and self.kernel[-1] > _WIDEST):
            return made + max(self.unrolled, output)
        return max(
            self.unrolled + made if far else 0,
            (0 if few else image) + weight + made + (0 if few else self.gathered),
            made + output,
        )

    def input_gradient(self, *, with_bias: bool = False) -> int:
        """Most bytes at once of the input's gradient, with copies; ``with_bias``: one is added, as transposed convolutions do."""
        gradient, inputs, _ = self.plain
        strided = self.strided and not self.depthwise
        bias = gradient if with_bias else 0
        whole = strided and (self.groups == 1 or self.outputs > _SMALL_BLOCK)
        if (self.dilated and (strided or self.depthwise)) or not (whole or self.fits(4)):
            return gradient + max(self.unrolled + bias, gradient)
        if whole:  # by a kernel that leaves channels last
            table = _STRIDED_TABLE_BYTES if self.stride == 2 else _WIDE_TABLE_BYTES
            weight = self.weight(_padded(self.inputs, _BLOCK), _padded(self.outputs, _BLOCK))
            return max(bias + inputs + weight + gradient + table, 3 * gradient)
        into, out, weight = self.blocked(_BLOCK)
        return max((into if with_bias else 0) + out + weight + into, into + gradient)

    def weight_gradient(self) -> int:
        """Most bytes at once of the weight's gradient, with copies."""
        gradient, dimensions = self.plain[2], len(self.kernel)
        few, small = self.groups == 1 and self.inputs <= 3, self.groups == 1 and self.inputs < _BLOCK
        far = self.dilated and (small or self.groups > 1 or dimensions == 3)
        wide = self.kernel[-1] > (3 if self.depthwise else _WIDEST) or (self.depthwise and self.area > 3**dimensions)
        products = gradient + max(self.unrolled + _SLICES * gradient + 256, gradient)
        if far or wide or not self.fits(_SMALL_BLOCK) or (small and not few and dimensions == 3):
            return products
        into, out, weight = self.blocked(_SMALL_BLOCK if small and not few else _BLOCK, self.inputs if few else 0)
        blocked = max((0 if few else into) + out + weight + self.gathered, weight + gradient)
        return max(blocked, products) if self.dilated and self.strided else blocked


def forward_bytes(args: Sequence[Any], out: Tensor) -> int:
    """Return the bytes besides its result that ``aten.convolution`` with these arguments allocates at its peak."""
    x, weight, bias, stride, _, dilation, transposed, _, groups = args[:9]
    made = _of(x, out, weight, stride, dilation, transposed, groups)
    order, copies = _order((x,), weight)
    if _torchs_own(x, weight, made):
        return bytes_of_one(out) if groups > 1 else made.columns
    if order is torch.channels_last:
        return copies + _weight_copy(weight) + _laid(made, few=True) + (_TABLE_BYTES if groups == 1 else 0)
    if not transposed:
        return copies + made.forward() - bytes_of_one(out)
    return copies + made.input_gradient(with_bias=bias is not None) - bytes_of_one(out)


def backward_bytes(args: Sequence[Any], out: Sequence[Tensor | None]) -> int:
    """Return the bytes besides its results that ``aten.convolution_backward`` with these arguments allocates at its peak."""
    dy, x, weight, _, stride, _, dilation, transposed, _, groups, wanted = args[:11]
    made = _of(x, dy, weight, stride, dilation, transposed, groups)
    order, copies = _order((x, dy), weight)
    into = bytes_of_one(x) if wanted[0] else 0
    of_weight = bytes_of_one(weight) if wanted[1] else 0
    if _torchs_own(x, weight, made):
        return into + of_weight if groups > 1 else made.columns
    if order is torch.channels_last:
        wide = made.depthwise and made.kernel[-1] > 3
        laid = groups * made.area * _BLOCK**2 * x.element_size() if wide else _laid(made, few=False)
        return copies + _weight_copy(weight) + laid + bytes_of_one(weight)
    first = (made.forward() if transposed else made.input_gradient()) if wanted[0] else 0
    second = into + made.weight_gradient() if wanted[1] else 0
    return copies + max(0, max(first, second) - into - of_weight)


def _of(
    x: Tensor, y: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], transposed: bool, groups: int
) -> _Convolution:
    ends = (y, x) if transposed else (x, y)
    positions = math.prod(ends[0].shape[2:]), math.prod(ends[1].shape[2:])
    plane = math.prod(ends[1].shape[2:][-2:])
    channels = int(weight.shape[1]), int(weight.shape[0]) // groups
    return _Convolution(
        len(x), groups, *channels, tuple(weight.shape[2:]), positions, plane, max(stride), max(dilation) > 1, x.element_size()
    )


def _torchs_own(x: Tensor, weight: Tensor, made: _Convolution) -> bool:
    """Whether torch computes a convolution without oneDNN (``use_mkldnn`` in Convolution.cpp of torch)."""
    if x.dtype is torch.float64 or (made.pointwise and not (made.strided or made.dilated) and len(x) < _BLOCK):
        return True
    kernel = (1, *made.kernel)[-2:]
    return made.groups == 1 and min(kernel) <= 3 and len(x) == 1 and math.prod(x.shape[:4]) <= _FEW_VALUES


def _order(images: Sequence[Tensor], weight: Tensor) -> tuple[torch.memory_format, int]:
    """Return the order of the channels in which a convolution computes, and the bytes of images that are copied into it."""
    order = torch.channels_last if any(map(_channels_last, (images[0], weight))) else torch.contiguous_format
    return order, sum(bytes_of_one(image) for image in images if not image.is_contiguous(memory_format=order))


def _channels_last(tensor: Tensor) -> bool:
    """Whether torch takes the order of a tensor for channels last (``suggest_memory_format``), which is a matter of its strides."""
    if tensor.dim() != 4:
        return False
    least, strides = 0, tensor.stride()
    for dimension in (1, 3, 2, 0):
        if strides[dimension] < least or (dimension == 0 and least == strides[1]):
            return False
        least = strides[dimension] * max(1, tensor.shape[dimension])
    return True


def _laid(made: _Convolution, *, few: bool) -> int:
    """Bytes of a weight in the order that a kernel with channels last reads; ``few``: its inputs are not padded."""
    if made.depthwise:
        return made.blocked(_BLOCK)[2]
    unpadded = made.groups == 1 and (few or made.inputs < _BLOCK)
    return made.weight(made.inputs if unpadded else _padded(made.inputs, _BLOCK), _padded(made.outputs, _BLOCK))


def _weight_copy(weight: Tensor) -> int:
    return 0 if weight.is_contiguous(memory_format=torch.channels_last) else bytes_of_one(weight)


def _padded(channels: int, block: int) -> int:
    return -(-channels // block) * block


def bytes_of_one(tensor: Tensor) -> int:
    """Return the bytes of the values of a tensor."""
    return tensor.numel() * tensor.element_size()
