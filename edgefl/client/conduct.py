"""The contract of a conduct: how some clients of a simulated run behave otherwise than the server asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict
from torch import Tensor, nn

from edgefl.data.split import Split
from edgefl.methods.base import Method
from edgefl.methods.state import Tensors
from edgefl.registry import conducts
from edgefl.wire.message import MessageFields


@dataclass(frozen=True)
class Conduct:
    """How clients of a run behave. A subclass, decorated ``@conduct("name")`` in a file of contrib, says which clients depart, and how.

    Another process makes it again: its class has a method ``of``, whose arguments are :meth:`fields`.

    Attributes:
        claims: whether clients that depart claim other samples than they have.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    claims: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """Key and value of the configuration that asks for it."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return str(conducts.name_of(type(self)))

    def fields(self) -> MessageFields:
        """Return what its class makes it from, as JSON has it."""
        raise NotImplementedError

    def departs(self, client: int) -> bool:
        """Whether ``client`` behaves otherwise than the server asks. The functions below are asked of such clients only."""
        raise NotImplementedError

    def trains(self, client: int) -> bool:
        """Whether ``client`` trains; if not, its session costs no MACs."""
        return True

    def samples(self, client: int, own: Split, classes: int) -> Split:
        """Return the samples that ``client`` trains on: as many as its ``own``, a copy, and of their shapes."""
        return own

    def sent(self, round_: int, client: int, start: Tensors, trained: Tensors) -> Tensors:
        """Return what ``client`` sends instead of ``trained``; ``start`` is what it would send without training."""
        return trained

    def claimed(self, client: int, samples: int) -> int:
        """Return how many samples ``client``, which has ``samples``, says it has; asked of every client."""
        return samples


def started(method: Method, module: nn.Module) -> dict[str, Tensor]:
    """Return copies of what a client would send that has received ``module`` and does not train."""
    return {name: tensor.detach().cpu().clone() for name, tensor in method.upload(module).items()}
