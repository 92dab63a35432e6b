"""The server's half of an objective with memory (SCAFFOLD, FedDyn) as a stage."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from edgefl.client.objective import CONTROL, Objective
from edgefl.client.stage import Stage, StagePlace, Turn
from edgefl.methods.state import Shape, Tensors
from edgefl.records import Submodel, Update
from edgefl.server.control_variates import SERVER, Control


@dataclass(frozen=True)
class Remembered(Stage):
    """Clients send control variates, or tell by their update how far they moved; the server corrects its step by the sum."""

    objective: Objective

    place = StagePlace.REMEMBERED

    @property
    def name(self) -> str:
        """The objective, for messages."""
        return f"objective {self.objective.name}"

    def beside(self, trained: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return name → shape of the control variates."""
        return self.objective.control_shapes(trained)

    def sends(self, submodel: Submodel, turn: Turn) -> dict[str, Tensor]:
        """Return the server's control variates of a sub-model."""
        return self._control(turn).variates(submodel, turn.trained(submodel.tier))

    def admit(self, update: Update, turn: Turn) -> Update:
        """Add the client's answer to the sums of the round; return the update without control variates."""
        names = turn.trained(update.tier)
        sent = Submodel(update.tier, update.start, dict, update.places)  # type: ignore[arg-type]
        self._control(turn).add(sent, names, update.tensors, turn.model)
        own = {name: tensor for name, tensor in update.tensors.items() if not name.startswith(CONTROL)}
        return replace(update, tensors=own)

    def step(self, before: Tensors, after: Tensors, turn: Turn) -> Mapping[str, Tensor]:
        """Return the tensors with the objective's correction; store what the server remembers."""
        aggregated, kept = self._control(turn).finish(turn.model, turn.model.replace(after))
        turn.after.update({name: tensor for name, tensor in kept.items() if name.startswith(SERVER)})
        return aggregated.tensors

    def _control(self, turn: Turn) -> Control:
        control: Control = turn.notes(self, lambda: Control(self.objective, turn.memory, turn.clients))
        return control
