"""Sizes of reference networks that papers print, and exact ones from their tables layer by layer."""

from __future__ import annotations

import pytest

from edgefl.models.base import Architecture
from edgefl.registry import models


def size(name: str, classes: int, width: float = 1.0, norm: str | None = None) -> int:
    network = Architecture(name, models.facts(name)["usual_input"], classes, norm).skeleton(width)
    return sum(p.numel() for p in network.parameters())


def test_resnet9_has_the_convolutions_of_factorized_fl_s_table_3():
    """Appendix C.1: 2.57 M; Figure 8: 2.574 M, which is the size with all four vectors of BatchNorm."""
    table = [(3, 64, 3), (64, 128, 5), (128, 128, 3), (128, 128, 3), (128, 256, 3), (256, 256, 3), (256, 256, 3), (256, 256, 3)]
    convolutions = sum(m * n * k * k for m, n, k in table)
    channels = sum(n for _, n, _ in table)
    assert size("resnet9", 10, norm="none") == convolutions + 257 * 10
    assert size("resnet9", 10) == convolutions + 2 * channels + 257 * 10 == 2_571_338
    assert size("resnet9", 10) / 1e6 == pytest.approx(2.57, abs=0.005)
    assert (size("resnet9", 10) + 2 * channels) / 1e6 == pytest.approx(2.574, abs=0.0005)
    network = Architecture("resnet9", (3, 32, 32), 10).skeleton()
    shapes = [tuple(p.shape) for name, p in network.named_parameters() if name.endswith("conv.weight")]
    assert shapes == [(n, m, k, k) for m, n, k in table]


@pytest.mark.parametrize(("classes", "printed_m", "exact"), [(10, 15.25, 15_253_578), (100, 15.30, 15_299_748)])
def test_vgg16_is_fedpara_s_original(classes, printed_m, exact):
    """Table 5 and appendix C.2: thirteen convolutions with bias, GroupNorm behind each, 512-512-classes."""
    assert size("vgg16", classes) == exact
    assert exact / 1e6 == pytest.approx(printed_m, abs=0.005)
    stages = [64, 64, 128, 128, 256, 256, 256] + [512] * 6
    convolutions = sum(n * (9 * m + 1) for m, n in zip([3, *stages], stages, strict=False))
    assert exact == convolutions + 2 * sum(stages) + 2 * 513 * 512 + 513 * classes


@pytest.mark.parametrize(
    ("width", "printed_k", "exact"), [(0.25, 49, 53_488), (0.5, 214, 195_088), (0.75, 443, 424_880), (1.0, 787, 742_864)]
)
def test_the_recurrent_network_is_near_flanc_s_at_every_width(width, printed_k, exact):
    """FLANC, Table 1, Shakespeare, column p-width. The paper prints no architecture; ours is stated where it is defined."""
    assert size("rnn-shakespeare", 80, width) == exact
    assert exact / 1000 == pytest.approx(printed_k, rel=0.1)


def test_flanc_s_widths_leave_no_room_for_a_classifier():
    """Recurrent weights shrink with p², a classifier of 80 characters with p. a·p² + b·p + c through 49, 443 and 787 K has b = 4 K."""
    slopes = (443 - 49) / (0.75 - 0.25), (787 - 443) / (1 - 0.75)  # a·(p + q) + b
    a = (slopes[1] - slopes[0]) / (1.75 - 1.0)
    b = slopes[0] - a
    assert (a, b) == (784, 4)
    # Figures rounded to a thousand move b by 10 K at most; 4·h·(e + h) = 784 K of LSTM weights have 443 units, and 35 K after them.
    assert 80 * (a * 1000 / 4) ** 0.5 / 1000 > b + 10


def test_prism_s_tables():
    """Table 8 (LSTM: 1001 → 64, two layers of 256; one output more than printed), Table 7 (CNN), Table 6 (DeiT: 192, 12, 3)."""
    layers = 4 * 256 * (64 + 256 + 2) + 4 * 256 * (256 + 256 + 2)
    assert size("lstm-imdb", 2) == 1001 * 64 + layers + 257 * 2 == 920_642
    assert size("cnn-femnist", 10) == 64 * (25 + 1) + 64 * (64 * 9 + 1) + (64 * 5 * 5 + 1) * 10 == 54_602
    block = 2 * 2 * 192 + 4 * 193 * 192 + 193 * 768 + 769 * 192
    assert size("deit-tiny", 10) == 192 * (3 * 16 + 1) + 192 + 65 * 192 + 12 * block + 2 * 192 + 193 * 10 == 5_362_762


def test_the_lstm_of_fedpara():
    """Appendix C.2: two layers of 256 and 80 classes, after McMahan et al. 2017 (embedding of 8)."""
    layers = 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2)
    assert size("lstm-shakespeare", 80) == 80 * 8 + layers + 257 * 80 == 819_920
