"""The training graphs of a tier: what they are made from."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgefl.bundle.tier_export import _valued
from edgefl.bundle.tier_graphs import tier_graphs
from edgefl.client.objectives import PLAIN
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.roles import StepRule
from edgefl.records import Tier


@pytest.fixture
def uninitialised_nan() -> Iterator[None]:
    """What torch allocates without values holds NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("uninitialised_nan")
@pytest.mark.parametrize("method", ["fedavg", "flanc", "fedpara", "factorized-fl"])
@pytest.mark.parametrize("norm", ["batch", "static"])
def test_no_graph_is_compared_with_torch_on_memory_without_values(method: str, norm: str) -> None:
    """Networks are made without initial weights; FLANC's are without values until the run begins. A step from NaN is refused."""
    architecture = Architecture("cnn-fashion", (1, 10, 10), 3, norm)
    made = tier_graphs(create(method), architecture, Tier(0.5 if method == "flanc" else 1.0), StepRule("momentum", 1e-4), PLAIN)
    assert made.steps.steps
    assert made.predict


class Attentive(nn.Module):
    """Attention that drops weights, whose sizes torch computes from those of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Linear(5, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.fc(self.attention(x, x, x, need_weights=False)[0].mean(1))


def test_a_loss_of_two_halves_of_a_batch_has_graphs_for_every_batch_size() -> None:
    architecture = CustomArchitecture(model="own", factory=Attentive, inputs={"": InputSpec((6, 5))}, classes=3)
    made = tier_graphs(
        create("per-fedavg"), architecture, Tier(1.0), StepRule(), PLAIN
    )  # compares steps of several sizes with torch
    assert made.steps.steps


def test_ids_from_0_to_255_may_be_given_in_bytes():
    span = np.zeros(2, np.uint8), np.array([255, 3], np.uint8)
    spec = InputSpec((2,), torch.int64, 256, span)
    ids = _valued(torch.zeros(50, 2, dtype=torch.int64), spec, torch.Generator().manual_seed(0))
    assert (ids.min(0).values >= 0).all()
    assert (ids.max(0).values <= torch.tensor([255, 3])).all()
    assert ids[:, 0].max() > 127
