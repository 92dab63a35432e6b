"""FLANC's published communication: Table 1 of Mei et al., NeurIPS 2022, parameters sent for each width."""

import math

import pytest

from edgefl.methods.base import create
from edgefl.models.base import Architecture
from edgefl.records import Tier

WIDTHS = (0.25, 0.5, 0.75, 1.0)
RESNET = (500_000, 1_200_000, 2_400_000, 4_000_000)

# Model, input, classes; what Table 1 prints for FLANC, the most that may be sent; and what is sent, exactly.
SENT = [
    ("resnet18", (3, 32, 32), 10, RESNET, (483_586, 965_698, 1_766_914, 2_887_234)),
    ("resnet18", (3, 32, 32), 100, RESNET, (491_788, 981_500, 1_790_316, 2_918_236)),
    ("cnn-fashion", (1, 28, 28), 10, (33_000, 63_000, 98_000, 136_000), (32_681, 61_655, 94_725, 131_891)),
    ("rnn-shakespeare", (80,), 80, (48_000, 187_000, 417_000, 740_000), (37_843, 131_635, 283_667, 493_939)),
]


@pytest.mark.parametrize(("model", "shape", "classes", "printed", "exact"), SENT)
def test_no_more_is_sent_than_table_1_prints(model, shape, classes, printed, exact):
    method, architecture = create("flanc", tiers=WIDTHS), Architecture(model, shape, classes)
    method.check(architecture, tuple(map(Tier, WIDTHS)), 100)
    sent = tuple(sum(map(math.prod, method.shapes(architecture, Tier(width)).values())) for width in WIDTHS)
    assert sent == exact
    assert all(count <= most for count, most in zip(sent, printed, strict=True))
    dense = [sum(p.numel() for p in architecture.skeleton(width).parameters()) for width in WIDTHS]
    assert all(count < whole for count, whole in zip(sent, dense, strict=True))


@pytest.mark.parametrize(
    ("model", "shape", "printed_k"),
    [("resnet18", (3, 32, 32), (700, 2_800, 6_300, 11_100)), ("cnn-fashion", (1, 28, 28), (43, 106, 186, 285))],
)
def test_the_plain_widths_are_those_that_table_1_compares_with(model, shape, printed_k):
    """The column "p-width"; the paper cuts figures rather than rounding them."""
    step = 100 if printed_k[0] % 100 == 0 else 1
    for width, printed in zip(WIDTHS, printed_k, strict=True):
        count = sum(p.numel() for p in Architecture(model, shape, 10).skeleton(width).parameters())
        assert abs(count / 1000 - printed) < step, width


def test_sizes_of_the_bases_by_layer():
    """R₁ and R₂ of some layers: half of the smallest width's incoming channels, and 2·R₁ bases for a 3×3 kernel."""
    method = create("flanc", tiers=WIDTHS)
    sizes = method.sizes(Architecture("resnet18", (3, 32, 32), 10), Tier(1.0))
    found = {name: (of["weight"].channels, of["weight"].count) for name, of in sizes.items()}
    assert found["conv1"] == (3, 16)
    assert found["layer1.0.conv1"] == (8, 16)
    assert found["layer4.1.conv2"] == (64, 128)
    assert found["layer4.0.shortcut.0"] == (32, 21)
    assert found["fc"] == (16, 10)
