"""The common part of clients of one method and tier, computed once in a process instead of for every client."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from edgefl.client.fast.gradients import Captures
from edgefl.client.fast.layout import lay_out, layout_of
from edgefl.cost.step_memory import StepMemory
from edgefl.methods.base import Method
from edgefl.methods.capabilities import label_rows
from edgefl.methods.networks import skeleton
from edgefl.methods.penalties import decayed
from edgefl.methods.personal import Personal, download_shapes, personal_names, stored
from edgefl.models.base import Architecture, Unfilled
from edgefl.onnxgrad.stateless import unset_buffers
from edgefl.records import Tier
from edgefl.rng import generator, torch_seeded
from edgefl.util.fields import each

Shapes = Mapping[str, tuple[int, ...]]


@dataclass
class Parts:
    """The common part of clients of one method and tier. ``gradients`` has captures of steps, ``memory`` that of each kind of step."""

    method: Method
    architecture: Architecture
    tier: Tier
    seed: int
    device: torch.device
    gradients: Captures = field(default_factory=Captures)
    memory: dict[Hashable, StepMemory] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> Shapes:
        """Name → shape of the tensors that travel to a client."""
        return download_shapes(self.method, self.architecture, self.tier)

    @cached_property
    def personal(self) -> Mapping[str, Tensor]:
        """Name → personal tensor of a client before its first round, from the server's initial network."""
        first = first_personal(self.method, self.architecture, self.tier, self.seed)
        return {name: tensor.to(self.device) for name, tensor in first.items()}

    @cached_property
    def stored(self) -> frozenset[str]:
        """The names of the personal tensors that a client stores after its first round, instead of taking them from the application."""
        return stored(self.method, self.architecture, self.tier)

    @cached_property
    def parameters(self) -> Shapes:
        """Name → shape of :func:`shared_parameters`."""
        return trained_shapes(self.method, self.architecture, self.tier)

    @cached_property
    def sends_labels(self) -> bool:
        """Whether clients tell the server which labels they have samples of."""
        return bool(label_rows(self.method, self.architecture))

    @cached_property
    def decayed(self) -> frozenset[str]:
        """The names of the parameters that weight decay acts on."""
        those = set(decayed(self.method, self._network))
        return frozenset(name for name, parameter in self._network.named_parameters() if parameter in those)

    def network(self, in_torch: bool) -> nn.Module:
        """Return the network, one object that all clients use in turn; the caller loads the tensors that were sent and stored.

        If it trains ``in_torch``, it has its :attr:`layout` from the first client on. A method may evaluate it before it trains, and the
        last bits of a convolution depend on the layout.
        """
        network = self._laid_out if in_torch else self._network
        with torch.no_grad():
            for buffer, first in self._buffers:
                buffer.copy_(first)
        for buffers, name in self.unset:
            buffers[name] = None
        for parameter in self.trained.values():
            parameter.grad = None
        return network.train()

    @cached_property
    def unset(self) -> list[tuple[dict[str, Tensor | None], str]]:
        """The buffers of :meth:`network` that are None until its ``forward`` sets them: every client begins without them."""
        return unset_buffers(self._network)

    @cached_property
    def trained(self) -> Mapping[str, nn.Parameter]:
        """The parameters of :meth:`network` that training changes, by name."""
        return {name: parameter for name, parameter in self._network.named_parameters() if parameter.requires_grad}

    @cached_property
    def layout(self) -> torch.memory_format:
        """The memory order of images while torch trains :meth:`network`, see :mod:`edgefl.client.fast.layout`."""
        sample = each(lambda part: part.to(self.device), self.architecture.samples(1))
        return layout_of(self.another(), sample)

    @cached_property
    def _network(self) -> nn.Module:
        return self.another()

    @cached_property
    def _laid_out(self) -> nn.Module:
        lay_out(self._network, self.layout)
        return self._network

    def another(self) -> nn.Module:
        """Return a new network with arbitrary weights."""
        with torch_seeded(generator(self.seed, "network")), Unfilled():
            return self.method.network(self.architecture, self.tier).to(self.device).train()

    @cached_property
    def _buffers(self) -> list[tuple[Tensor, Tensor]]:
        """The buffers that are neither sent nor stored, such as a count of batches, each with its first value."""
        loaded = {*self.shapes, *self.personal}
        return [(buffer, buffer.clone()) for name, buffer in self._network.named_buffers() if name not in loaded]


def first_personal(method: Method, architecture: Architecture, tier: Tier, seed: int) -> dict[str, Tensor]:
    """Return name → personal tensor of every client of ``tier`` before its first round."""
    return method.first_personal(architecture, tier, generator(seed, "init")) if isinstance(method, Personal) else {}


def trained_shapes(method: Method, architecture: Architecture, tier: Tier) -> dict[str, tuple[int, ...]]:
    """Return name → shape of :func:`shared_parameters` of the tier's network."""
    parameters = shared_parameters(method, skeleton(method, architecture, tier))
    return {name: tuple(parameter.shape) for name, parameter in parameters.items()}


def shared_parameters(method: Method, network: nn.Module) -> dict[str, nn.Parameter]:
    """Return name → parameters of ``network`` that are trained and travel, not personal ones; objectives add terms for them."""
    personal = personal_names(method, network)
    return {name: parameter for name, parameter in network.named_parameters() if name not in personal and parameter.requires_grad}
