"""FedPara's published counts: Tables 1 and 5, Figure 6, the ratios of sections 3.1 and 3.2, and of appendix D.2."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.factor import hadamard, tucker
from edgefl.factor.hadamard import inner_weight, rank_of, rank_range
from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.wire.payload import payload_bytes

# γ → millions of parameters, 10 classes and 100 classes (Table 5).
TABLE_5 = {
    0.1: (1.55, 1.59), 0.2: (2.33, 2.38), 0.3: (3.31, 3.36), 0.4: (4.45, 4.50), 0.5: (5.79, 5.84),
    0.6: (7.33, 7.38), 0.7: (9.01, 9.05), 0.8: (10.90, 10.94), 0.9: (12.92, 12.96),
}  # fmt: skip


def vgg16(classes: int) -> nn.Sequential:
    """VGG16 with GroupNorm and linear layers 512-512-classes (appendix C.2), written here again from the text."""
    layers: list[nn.Module] = []
    channels = 3
    for size in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if size == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, size, 3, padding=1), nn.GroupNorm(8, size), nn.ReLU()]
        channels = size
    dense = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, classes)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


class TwoLayerLSTM(nn.Module):
    """A character model: embedding of 8, two LSTM layers of 256, 80 classes (appendix C.2; McMahan et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.fc = nn.Linear(256, 80)

    def forward(self, x):
        return self.fc(self.lstm(self.embedding(x))[0][:, -1])


@dataclass(frozen=True)
class Built(Architecture):
    """A network of this file."""

    def build(self, width: float = 1.0) -> nn.Module:
        return TwoLayerLSTM() if self.classes == 80 else vgg16(self.classes)


def count(method: str, architecture: Architecture, gamma: float, **options) -> int:
    shapes = download_shapes(create(method, options), architecture, Tier(gamma))
    return sum(math.prod(shape) for shape in shapes.values())


@pytest.mark.parametrize(("classes", "column", "original"), [(10, 0, 15.25), (100, 1, 15.30)])
def test_vgg16_has_the_published_size_at_every_gamma(classes, column, original):
    architecture = Built("mlp", (3, 32, 32), classes)
    assert count("fedavg", architecture, 1.0) / 1e6 == pytest.approx(original, abs=0.005)
    for gamma, published in TABLE_5.items():
        assert count("fedpara", architecture, gamma) / 1e6 == pytest.approx(published[column], rel=0.005), gamma


def test_the_reference_vgg16_is_the_paper_s():
    for classes in (10, 100):
        reference, own = (
            kind("vgg16" if kind is Architecture else "mlp", (3, 32, 32), classes) for kind in (Architecture, Built)
        )
        for gamma in (0.1, 0.5, 0.9):
            assert count("fedpara", reference, gamma) == count("fedpara", own, gamma)


def test_ten_percent_of_the_parameters_at_gamma_a_tenth():
    """Section 3.2: 10.15 % for FedPara (and 10.25 % for the low-rank rival), 29.4 % and 21.8 % in the other settings."""
    architecture = Built("mlp", (3, 32, 32), 10)
    whole = count("fedavg", architecture, 1.0)
    assert count("fedpara", architecture, 0.1) / whole == pytest.approx(0.1015, abs=0.0005)
    assert count("fedpara", architecture, 0.3) / whole == pytest.approx(0.218, abs=0.002)
    assert count("fedpara", architecture, 0.4) / whole == pytest.approx(0.294, abs=0.004)


def test_the_matched_low_rank_network_is_never_larger_and_hardly_smaller():
    architecture = Built("mlp", (3, 32, 32), 10)
    for gamma in (0.1, 0.5, 0.9):
        low, para = (count(name, architecture, gamma, **o) for name, o in (("lowrank", {"match": "fedpara"}), ("fedpara", {})))
        assert 0.98 * para < low <= para


def test_table_1_counts():
    """m = n = O = I = 256, K = 3, R = 16: 16 K for a linear layer, 21 K for a convolution by Proposition 3, of 66 K and 590 K."""
    assert hadamard.parameters_of_rank((256, 256), 16) == 16_384
    assert hadamard.parameters_of_rank((256, 256, 3, 3), 16) == 20_992
    assert rank_range((256, 256))[0] == rank_range((256, 256, 3, 3))[0] == 16
    assert tucker.parameters_of_rank((256, 256), 32) == 16_384


def test_random_factors_of_rank_ten_span_all_of_a_hundred():
    """Figure 6: 1,000 draws of (X₁Y₁ᵀ) ⊙ (X₂Y₂ᵀ), 100 × 100, R = 10, are all of full rank, with 2.5 times fewer entries."""
    rng = torch.Generator().manual_seed(0)
    assert rank_range((100, 100))[0] == 10
    assert 100 * 100 / hadamard.parameters_of_rank((100, 100), 10) == 2.5
    for _ in range(1000):
        x1, y1, x2, y2 = (torch.randn(100, 10, generator=rng, dtype=torch.float64) for _ in range(4))
        assert torch.linalg.matrix_rank(inner_weight(x1, y1) * inner_weight(x2, y2)) == 100


@pytest.mark.parametrize("rank", [2, 3])
def test_both_unfoldings_of_a_convolution_reach_rank_r_squared(rank):
    """Proposition 3: the first and second unfolding have rank R², no more, whatever their size."""
    rng = np.random.default_rng(rank)
    n, m = 16, 12
    parts = [[torch.from_numpy(rng.normal(size=s)) for s in ((n, rank), (m, rank), (rank, rank, 3, 3))] for _ in range(2)]
    weight = inner_weight(*parts[0]) * inner_weight(*parts[1])
    for unfolding in (weight.flatten(1), weight.transpose(0, 1).flatten(1)):
        assert torch.linalg.matrix_rank(unfolding) == rank**2


def test_what_personalised_methods_send_of_two_linear_layers():
    """Section 3.2, FEMNIST (62 classes): pFedPara at γ = 0.5 sends 3.4 times less than the network has, FedPer 1.07 times less."""
    architecture = Architecture("mlp", (1, 28, 28), 62)
    whole = count("fedavg", architecture, 1.0)
    assert whole / count("pfedpara", architecture, 0.5) == pytest.approx(3.4, abs=0.05)
    assert whole / count("fedper", architecture, 1.0) == pytest.approx(1.07, abs=0.01)
    assert [rank_of(shape, 0.5) for shape in ((256, 784), (62, 256))] == [56, 16]


@pytest.mark.parametrize(
    ("method", "gamma", "codec", "printed_mb"),
    [
        ("fedavg", 1.0, "fp32", 122),
        ("fedavg", 1.0, "fp16", 91.4),
        ("fedpara", 0.5, "fp32", 46.4),
        ("fedpara", 0.5, "fp16", 34.74),
    ],
)
def test_bytes_of_a_round_in_table_12(method, gamma, codec, printed_mb):
    """VGG16: both ways, in MB of 10⁶ bytes. FedPAQ sends updates as fp16."""
    made, architecture = create(method), Architecture("vgg16", (3, 32, 32), 10)
    down, up = download_shapes(made, architecture, Tier(gamma)), upload_shapes(made, architecture, Tier(gamma))
    assert (payload_bytes(down) + payload_bytes(up, codec)) / 1e6 == pytest.approx(printed_mb, rel=0.002)


def test_the_lstm_at_gamma_zero():
    """Table 11: 0.19 of the original's parameters. Tiers are above 0; this γ rounds to the same ranks."""
    architecture = Built("mlp", (80,), 80)
    ratio = count("fedpara", architecture, 1e-6) / count("fedavg", architecture, 1.0)
    assert ratio == pytest.approx(0.19, abs=0.005)
