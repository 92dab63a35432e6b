"""Networks whose logits are an entry or an attribute of what they return."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from edgefl import RunConfig
from edgefl.errors import ConfigError
from edgefl.run.prepare import prepare
from tests.runs import lines_of, stopped_after


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> object:
        hidden = torch.relu(self.body(x.flatten(1)))
        return self.returned(self.head(hidden), hidden)

    def returned(self, logits: Tensor, hidden: Tensor) -> object:
        return logits


class Entry(Plain):
    def returned(self, logits: Tensor, hidden: Tensor) -> object:
        return {"hidden": hidden, "logits": logits}


class Attribute(Plain):
    def returned(self, logits: Tensor, hidden: Tensor) -> object:
        return SimpleNamespace(loss=None, logits=logits, hidden=(hidden, hidden))


class Pair(NamedTuple):
    logits: Tensor
    auxiliary: Tensor


class Named(Plain):
    def returned(self, logits: Tensor, hidden: Tensor) -> object:
        return Pair(logits, hidden) if self.training else logits


@dataclass(slots=True)
class Slots:
    hidden: Tensor
    logits: Tensor


class Slotted(Plain):
    def returned(self, logits: Tensor, hidden: Tensor) -> object:
        return Slots(hidden, logits)


class Only(Plain):
    def returned(self, logits: Tensor, hidden: Tensor) -> object:
        return {"scores": logits, "name": "digits"}


class Cast(Plain):
    def returned(self, logits: Tensor, hidden: Tensor) -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(hidden)


@pytest.mark.parametrize("kind", [Entry, Attribute, Named, Slotted, Only])
def test_a_run_trains_and_evaluates_the_logits_alone(kind, tmp_path):
    few = {"rounds": 1, "clients": 2, "local_epochs": 1, "data_share": 0.1, "eval_samples": 40, "conditions": "ideal"}
    runs = [
        stopped_after(RunConfig(model=model, method="fedhm", tiers=(1.0, 0.5), **few), tmp_path / model.__name__, 1)
        for model in (Plain, kind)
    ]
    plain, own = (lines_of(folder) for folder in runs)
    assert plain == own


@pytest.mark.parametrize("loss", [None, "torch.nn.functional:cross_entropy"])
def test_outputs_that_numpy_cannot_hold_are_refused_before_the_run(loss):
    with pytest.raises(ConfigError, match=r"returns bfloat16 in evaluation, expected float32; return logits\.float\(\)$"):
        prepare(RunConfig(model=Cast, method="fedavg", loss=loss))
