"""The server's half of objectives that remember: FedDyn's h and SCAFFOLD's c, in the coordinates of the global state.

FedDyn (Acar et al. 2021, Algorithm 1): h ← h − α/N·Σ(wₖ − w), and the new weights are the average less h/α. SCAFFOLD (Karimireddy et
al. 2020, Algorithm 1): c ← c + 1/N·Σ(cₖ⁺ − cₖ). N is the number of all clients. Entries that no client of the round trained stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from edgefl.client.objective import CONTROL, Objective
from edgefl.methods.base import GlobalState
from edgefl.records import Submodel

SERVER = "objective:"
"""Prefix of what an objective keeps on the server."""


@dataclass
class Control:
    """One round of an objective on the server.

    Attributes:
        objective: which.
        kept: the server's tensors from the round before, by prefixed name.
        clients: N.
    """

    objective: Objective
    kept: Mapping[str, Tensor]
    clients: int
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _covered: dict[str, Tensor] = field(default_factory=dict)

    def variates(self, submodel: Submodel, names: Mapping[str, object]) -> dict[str, Tensor]:
        """Return the entries of c for the parameters ``names`` of a sub-model, to be sent with it."""
        if not self.objective.controls:
            return {}
        found = {}
        for name in names:
            place = submodel.places[name]
            control = self.kept.get(SERVER + place.target)
            zeros = torch.zeros_like(submodel.tensors[name])
            found[CONTROL + name] = zeros if control is None else control[place.index].clone()
        return found

    def add(self, submodel: Submodel, names: Mapping[str, object], tensors: Mapping[str, Tensor], state: GlobalState) -> None:
        """Take one client's answer: what it says of its control variates, or how far it moved."""
        for name in names if self.objective.remembers else ():
            place = submodel.places[name]
            moved = tensors[CONTROL + name] if self.objective.controls else tensors[name] - submodel.tensors[name]
            like = state.tensors[place.target]
            total = self._sums.setdefault(place.target, torch.zeros(like.shape, dtype=torch.float64))
            total[place.index] += moved.double()
            self._covered.setdefault(place.target, torch.zeros(like.shape, dtype=torch.bool))[place.index] = True

    def finish(self, state: GlobalState, aggregated: GlobalState) -> tuple[GlobalState, dict[str, Tensor]]:
        """Return the state after the round, and what the server keeps for the next one."""
        kept, tensors = dict(self.kept), dict(aggregated.tensors)
        for target, total in self._sums.items():
            before = self.kept.get(SERVER + target, torch.zeros_like(state.tensors[target])).double()
            if self.objective.controls:
                kept[SERVER + target] = (before + total / self.clients).float()
                continue
            after = before - self.objective.strength / self.clients * total
            kept[SERVER + target] = after.float()
            corrected = tensors[target].double() - after / self.objective.strength
            tensors[target] = torch.where(self._covered[target], corrected.to(tensors[target].dtype), tensors[target])
        return (aggregated.replace(tensors) if self._sums and not self.objective.controls else aggregated), kept
