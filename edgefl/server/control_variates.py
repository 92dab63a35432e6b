"""The server's half of objectives with memory (SCAFFOLD, FedDyn), in the coordinates of the global state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from edgefl.client.objective import CONTROL, Objective
from edgefl.methods.state import GlobalState
from edgefl.records import Submodel

SERVER = "objective:"
"""Prefix of what an objective stores on the server, among the server's tensors."""


@dataclass
class Control:
    """One round of an objective on the server. Entries that no client of the round trained stay as they are.

    Attributes:
        memory: the server's tensors from the round before, by names with the prefix :data:`SERVER`.
        clients: N, the number of all clients of the run.
    """

    objective: Objective
    memory: Mapping[str, Tensor]
    clients: int
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _covered: dict[str, Tensor] = field(default_factory=dict)

    def variates(self, submodel: Submodel, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the control variates of the parameters ``names`` of a sub-model, to be sent with it."""
        if not self.objective.controls:
            return {}
        variates = {}
        for name in names:
            place = submodel.places[name]
            control = self.memory.get(SERVER + place.target)
            zeros = torch.zeros_like(submodel.tensors[name])
            variates[CONTROL + name] = zeros if control is None else control[place.index].clone()
        return variates

    def add(self, submodel: Submodel, names: Iterable[str], tensors: Mapping[str, Tensor], state: GlobalState) -> None:
        """Add one client's answer to the round's sums: its control variates, or how far it moved."""
        for name in names if self.objective.remembers else ():
            place = submodel.places[name]
            moved = tensors[CONTROL + name] if self.objective.controls else tensors[name] - submodel.tensors[name]
            like = state.tensors[place.target]
            total = self._sums.setdefault(place.target, torch.zeros(like.shape, dtype=torch.float64))
            total[place.index] += moved.double()
            self._covered.setdefault(place.target, torch.zeros(like.shape, dtype=torch.bool))[place.index] = True

    def finish(self, state: GlobalState, aggregated: GlobalState) -> tuple[GlobalState, dict[str, Tensor]]:
        """Return the aggregated state with the objective's correction, and the tensors that the server stores for the next round."""
        stored, changed = dict(self.memory), {}
        for target, total in self._sums.items():
            before = self.memory.get(SERVER + target, torch.zeros_like(state.tensors[target])).double()
            after = self.objective.on_server(before, total, self.clients)
            stored[SERVER + target] = after.float()
            tensor = aggregated.tensors[target]
            if (corrected := self.objective.corrected(tensor.double(), after)) is not None:
                changed[target] = torch.where(self._covered[target], corrected.to(tensor.dtype), tensor)
        return (aggregated.replace({**aggregated.tensors, **changed}) if changed else aggregated), stored
