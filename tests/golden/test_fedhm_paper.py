"""FedHM's published sizes: Tables 2, 3, 5 and 6 of Yao et al."""

import pytest

from edgefl.config import RunConfig
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost, training_of
from edgefl.records import Tier

# (model, classes, γ) → parameters printed in millions (Tables 2 and 3), and exactly, for the architectures of Tables 5 and 6.
SIZES = [
    ("resnet18", 10, 1.0, 11.17, 11_173_962),
    ("resnet18", 10, 0.5, 4.16, 4_157_514),
    ("resnet18", 10, 0.25, 2.21, 2_209_866),
    ("resnet18", 10, 0.125, 1.24, 1_236_042),
    ("resnet34", 100, 1.0, 21.33, 21_328_292),
    ("resnet34", 100, 0.5, 8.40, 8_401_316),
    ("resnet34", 100, 0.25, 4.99, 4_985_252),
    ("resnet34", 100, 0.125, 3.28, 3_277_220),  # the paper prints 3.27
]


@pytest.mark.parametrize(("model", "classes", "ratio", "printed_m", "exact"), SIZES)
def test_parameters_of_tables_2_and_3(model, classes, ratio, printed_m, exact):
    shapes = create("fedhm").shapes(Architecture(model, (3, 32, 32), classes), Tier(ratio))
    count = sum(_size(shape) for shape in shapes.values())
    assert count == exact
    assert round(count / 1e6, 2) == printed_m


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def test_low_rank_layers_of_table_5():
    """Layer 1: first block dense, second low-rank; layers 2 to 4 low-rank but for the 1×1 shortcuts; stem and classifier dense."""
    shapes = create("fedhm").shapes(Architecture("resnet18", (3, 32, 32), 10), Tier(0.5))
    assert shapes["conv1.weight"] == (64, 3, 3, 3)
    assert shapes["layer1.0.conv1.weight"] == (64, 64, 3, 3)
    assert shapes["layer1.1.conv1.u.weight"] == (32, 64, 3, 1)
    assert shapes["layer1.1.conv1.v.weight"] == (64, 32, 1, 3)
    assert shapes["layer4.0.conv1.u.weight"] == (256, 256, 3, 1)
    assert shapes["layer4.0.shortcut.0.weight"] == (512, 256, 1, 1)
    assert shapes["fc.weight"] == (10, 512)


def test_costs_of_a_factorized_layer_follow_table_1():
    """Table 1: parameters rk(m+n), MACs rkHW(m+n) for a stride of 1; here m=32, n=64, k=3, r=32, 8×8 and m=n=64, r=32, 4×4."""
    cost = tier_cost(create("fedhm"), Architecture("cnn-digits", (1, 8, 8), 10), Tier(0.5), training_of(RunConfig()))
    stem, head = 9 * 32 * 64, 64 * 16 * 10
    assert cost.macs_forward == stem + 32 * 3 * 64 * (32 + 64) + 32 * 3 * 16 * (64 + 64) + head
    # Backward: weight and input gradients each cost a forward pass, but the stem needs no input gradient.
    assert cost.macs_backward == 2 * cost.macs_forward - stem
    norms = 2 * (32 + 64 + 64)
    assert cost.params == 9 * 32 + 32 * 3 * (32 + 64) + 32 * 3 * (64 + 64) + 64 * 16 * 10 + 10 + norms
