"""Networks whose kernels PriSM draws, one of them recurrent, and updates of clients that moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.methods.base import Method
from edgefl.models.base import Architecture, scaled
from edgefl.records import Submodel, Tier, Update
from edgefl.rng import generator

CNN = Architecture("cnn-digits", (1, 8, 8), 4)


def weights(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


class Recurrent(nn.Module):
    """Tokens to an embedding, two LSTM layers and a classifier: Table 8 in small."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, scaled(6, width))
        self.lstm = nn.LSTM(scaled(6, width), scaled(10, width), num_layers=2, batch_first=True)
        self.fc = nn.Linear(scaled(10, width), 3)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.lstm(self.embedding(x))[0][:, -1])


@dataclass(frozen=True)
class RecurrentArchitecture(Architecture):
    def build(self, width: float = 1.0) -> nn.Module:
        return Recurrent(width)

    def samples(self, count: int) -> Tensor:
        return torch.zeros(count, *self.input_shape, dtype=torch.int64)


TEXT = RecurrentArchitecture("mlp", (7,), 3)


def first_state(method: Method, architecture: Architecture, *keeps: float) -> Any:
    return method.init(architecture, tuple(map(Tier, keeps)), generator(0, "init"))


def loaded(submodel: Submodel) -> Any:
    module = submodel.build()
    module.load_state_dict(submodel.tensors)
    return module


def moved(method: Method, state: Any, keep: float, client: int, by: float = 0.1) -> Update:
    """A client's update: what it was sent, every entry scaled by its own factor."""
    sent = method.submodel(state, Tier(keep), generator(client, "submodel"), client)
    rng = np.random.default_rng(client)
    tensors = {n: t * torch.from_numpy(1 + by * rng.standard_normal(tuple(t.shape))).float() for n, t in sent.tensors.items()}
    return Update(client, Tier(keep), tensors, sent.places, 5)
