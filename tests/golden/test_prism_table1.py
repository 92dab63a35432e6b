"""PriSM's published costs: Table 1 of Niu et al., for a ResNet-18 whose layers are factorized here by hand.

What the table counts follows from its column of the full model: 35 G is 2 x 32 samples x 547 M MACs and 31.5 M is two maps (what a
convolution gives to its normalisation, and what the ReLU gives to the next convolution) of 32 samples, both of the sixteen 3x3
convolutions in the residual blocks. So the projections of shortcuts are left out, and the stem's maps.
"""

import math
from functools import cache

import pytest
import torch
from torch import nn

import edgefl

KEEPS = (0.8, 0.6, 0.4, 0.2)
BLOCKS = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))  # kernels and stride
# What two maps of every 3x3 convolution hold, in numbers: 32 samples, four convolutions per stage.
MAPS = 2 * 32 * 4 * (64 * 32 * 32 + 128 * 16 * 16 + 256 * 8 * 8 + 512 * 4 * 4)

# Shares of the full model in percent, as printed, at the four keep ratios.
PRINTED = {
    ("prism", "params"): (72, 41, 18, 4.5),
    ("prism", "macs_forward"): (73, 42, 20, 5.6),
    ("prism", "saved_bytes"): (115, 90, 60, 30),
    ("orthdrop", "params"): (90, 67, 44, 22),
    ("orthdrop", "macs_forward"): (82, 64, 46, 23),
    ("orthdrop", "saved_bytes"): (143, 129, 115, 101),
}
MEASURED = {
    ("prism", "params"): (72.4, 40.9, 18.3, 4.7),
    ("prism", "macs_forward"): (73.9, 42.8, 20.2, 6.0),
    ("prism", "saved_bytes"): (121.3, 90.9, 60.9, 32.1),
    ("orthdrop", "params"): (90.3, 67.8, 45.3, 22.8),
    ("orthdrop", "macs_forward"): (90.4, 67.9, 45.5, 23.0),
    ("orthdrop", "saved_bytes"): (140.4, 130.3, 120.3, 110.2),
}
POINTS = {"params": 1.5, "macs_forward": 1.5, "saved_bytes": 8}
NOT_MET = {
    (
        "orthdrop",
        "macs_forward",
        0.8,
    ): "printed 82: Conv_V alone takes 80 of the full model, and Conv_U, 1/9 of that or more, the rest",
    ("orthdrop", "macs_forward", 0.6): "printed 64: Conv_V takes 60, Conv_U 7.5; the rows for 0.4 and 0.2 do contain Conv_U",
    (
        "orthdrop",
        "saved_bytes",
        0.2,
    ): "printed 101: two maps of n channels are the full model's 100, and Conv_V's map of 0.2 n adds 10",
}


def kept(keep: float, channels: int) -> int:
    """PriSM's r: the smallest number of kernels that is the share or more."""
    return math.ceil(keep * channels - 1e-9)


class Factorized(nn.Module):
    """Conv_V, k x k from the inputs to r kernels, and Conv_U, 1x1 to ``outputs``; no normalisation between them."""

    def __init__(self, inputs: int, rank: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.v = nn.Conv2d(inputs, rank, kernel, stride, kernel // 2, bias=False)
        self.u = nn.Conv2d(rank, outputs, 1, bias=False)

    def forward(self, x):
        return self.u(self.v(x))


def normalised(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


class Block(nn.Module):
    def __init__(self, inputs: int, kernels: int, stride: int, method: str, keep: float) -> None:
        super().__init__()
        rank = kept(keep, kernels)
        self.outputs = rank if method == "prism" else kernels

        def convolution(channels: int, step: int) -> nn.Module:
            if method == "full":
                return nn.Conv2d(channels, kernels, 3, step, 1, bias=False)
            return Factorized(channels, rank, self.outputs, 3, step)

        self.conv1, self.norm1 = convolution(inputs, stride), normalised(self.outputs)
        self.conv2, self.norm2 = convolution(self.outputs, 1), normalised(self.outputs)
        self.project = nn.Identity()
        if stride != 1:
            self.project = nn.Sequential(nn.Conv2d(inputs, self.outputs, 1, stride, bias=False), normalised(self.outputs))

    def forward(self, x):
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        # Behind the stem PriSM's first block has fewer channels than it takes in: the first r of them go past it.
        return torch.relu(y + self.project(x)[:, : self.outputs])


def resnet18(method: str, keep: float) -> nn.Module:
    blocks: list[Block] = []
    channels = 64
    for kernels, stride in BLOCKS:
        blocks.append(Block(channels, kernels, stride, method, keep))
        channels = blocks[-1].outputs
    stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), normalised(64), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return nn.ModuleDict({"stem": stem, "blocks": nn.Sequential(*blocks), "head": head})


class InOrder(nn.Module):
    def __init__(self, parts: nn.ModuleDict) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x):
        for part in self.parts.values():
            x = part(x)
        return x


@cache
def costs(method: str, keep: float) -> dict[str, int]:
    (row,) = edgefl.profile(InOrder(resnet18(method, keep)), (3, 32, 32), batch_size=32)
    layers = [layer for layer in row["layers"] if ".project" not in layer["layer"]]
    blocks = [layer for layer in layers if layer["layer"].startswith("parts.blocks")]
    return {
        "params": sum(layer["params"] for layer in layers),
        "macs_forward": sum(layer["macs_forward"] for layer in layers),
        "saved_bytes": sum(layer["saved_bytes_at_peak"] for layer in blocks),
    }


def share(method: str, figure: str, keep: float) -> float:
    return 100 * costs(method, keep)[figure] / costs("full", 1.0)[figure]


def rows():
    for (method, figure), printed in PRINTED.items():
        for keep, percent in zip(KEEPS, printed, strict=True):
            reason = NOT_MET.get((method, figure, keep))
            marks = (pytest.mark.xfail(strict=True, reason=reason),) if reason else ()
            yield pytest.param(method, figure, keep, percent, marks=marks, id=f"{method}-{figure}-{keep}")


@pytest.mark.parametrize(("method", "figure", "keep", "printed"), list(rows()))
def test_shares_of_table_1(method, figure, keep, printed):
    assert share(method, figure, keep) == pytest.approx(printed, abs=POINTS[figure])


@pytest.mark.parametrize(("method", "figure"), list(MEASURED))
def test_measured_shares_are_those_written_down(method, figure):
    assert tuple(round(share(method, figure, keep), 1) for keep in KEEPS) == MEASURED[method, figure]


def test_the_full_model_has_the_printed_size_work_and_memory():
    """Printed: 11 M, 35 G and 31.5 M; the second counts a multiplication and an addition as two."""
    full = costs("full", 1.0)
    assert full["params"] / 1e6 == pytest.approx(11, abs=0.005)
    assert 2 * 32 * full["macs_forward"] / 1e9 == pytest.approx(35, abs=0.2)
    assert round(MAPS / 1e6, 1) == 31.5


@pytest.mark.parametrize("keep", KEEPS)
def test_parameters_of_prism_are_the_closed_form(keep):
    """Sum of r (9 m + r) over the convolutions, with m the channels that the one before gives; stem, norms and classifier beside it."""
    total, inputs = 9 * 3 * 64 + 2 * 64, 64
    for kernels, _ in BLOCKS:
        rank = kept(keep, kernels)
        total += rank * (9 * inputs + rank) + rank * (9 * rank + rank) + 2 * 2 * rank
        inputs = rank
    assert costs("prism", keep)["params"] == total + inputs * 10 + 10


@pytest.mark.parametrize(
    ("method", "maps"), [("full", lambda keep: 2), ("prism", lambda keep: 3 * keep), ("orthdrop", lambda keep: 2 + keep)]
)
@pytest.mark.parametrize("keep", [0.25, 0.5])
def test_the_blocks_leave_two_maps_a_convolution_and_one_more_of_the_kernels(method, maps, keep):
    """At ratios without rounding. At this batch the peak comes before the last block's maps, smaller than gradients, are freed."""
    (row,) = edgefl.profile(InOrder(resnet18(method, keep)), (3, 32, 32), batch_size=512)
    blocks = [x for x in row["layers"] if x["layer"].startswith("parts.blocks") and ".project" not in x["layer"]]
    statistics = 2 * 4 * sum(2 * (kept(keep, k) if method == "prism" else k) for k, _ in BLOCKS)
    assert sum(x["saved_bytes_at_peak"] for x in blocks) == 4 * MAPS / 2 * maps(keep) * 512 / 32 + statistics
