"""Chooses the factorized layers whose factors are multiplied for a device: for each layer the cheaper form that the budgets allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from edgefl.cost.calls import spelled_out
from edgefl.cost.macs import work_of
from edgefl.cost.memory import Watcher, bytes_of
from edgefl.cost.operations import LayerTracker, kinds_of
from edgefl.cost.trace import Subject, Tracer, quiet
from edgefl.factor.compose import composed_network, factorized_layers
from edgefl.records import Batch
from edgefl.records.work import NO_WORK, Work
from edgefl.util.fields import Fields, each, first

Costs = Sequence[float]
"""A device's seconds of one count of each kind of work, in the order of :data:`~edgefl.records.work.KINDS`."""


@dataclass(frozen=True)
class FormCost:
    """The cost of a layer in one form: work of an inference, products of factors included, and bytes of parameters and buffers."""

    work: Work
    weight_bytes: int


@dataclass(frozen=True)
class LayerForms:
    """A factorized layer and its cost in both forms.

    ``at_run_time``: the layer multiplies its factors in every forward pass, so that a runtime holds its dense weight in either form.
    """

    name: str
    factored: FormCost
    composed: FormCost
    at_run_time: bool

    def cost(self, form: FormCost, costs: Costs | None) -> float:
        """Return the cost of the layer in a form: seconds at a device's costs, or MACs without costs."""
        return form.work.macs if costs is None else form.work.seconds(costs)


@dataclass(frozen=True)
class Room:
    """How many bytes weights may still grow when factors are multiplied, in memory and in the file; negative: over budget already."""

    memory_bytes: float = math.inf
    file_bytes: float = math.inf

    def after(self, layer: LayerForms) -> Room:
        """Return the room that is left after the factors of ``layer`` are multiplied."""
        more = layer.composed.weight_bytes - layer.factored.weight_bytes
        return Room(self.memory_bytes - (0 if layer.at_run_time else more), self.file_bytes - more)

    def short(self, before: Room) -> str:
        """Return which limit is exceeded here, and more than in ``before``, as text; empty if none is."""
        for name, had, have in self._since(before):
            if have < min(0.0, had):
                return f"it takes {had - have:,.0f} bytes more {name}, {max(0.0, had):,.0f} are left"
        return ""

    def eases(self, before: Room) -> bool:
        """Whether a limit that is exceeded in ``before`` is exceeded less here, or not at all."""
        return any(had < 0 and have > had for _, had, have in self._since(before))

    def _since(self, before: Room) -> tuple[tuple[str, float, float], ...]:
        return ("memory", before.memory_bytes, self.memory_bytes), ("file", before.file_bytes, self.file_bytes)


@dataclass(frozen=True)
class FormChoice:
    """The names of the layers with multiplied factors, and name of every factorized layer → its form and the reason."""

    composed: frozenset[str]
    reasons: Mapping[str, str] = field(default_factory=dict)


def choose(layers: Iterable[LayerForms], costs: Costs | None = None, room: Room | None = None) -> FormChoice:
    """Return which of ``layers`` to compose: those that cost no more so, in the order of cost saved per added byte, while ``room`` lasts.

    Without ``costs``, MACs are compared instead of seconds. ``room`` None is no limit.

    >>> slow = LayerForms("a", FormCost(Work(product_macs=300), 40), FormCost(Work(product_macs=200), 80), at_run_time=False)
    >>> fast = LayerForms("b", FormCost(Work(product_macs=100), 40), FormCost(Work(product_macs=200), 80), at_run_time=False)
    >>> choose([slow, fast]).reasons
    {'a': 'composed: 200 MACs, in factors 300', 'b': 'in factors: 100 MACs, composed 200'}
    >>> choose([slow], room=Room(memory_bytes=20)).reasons
    {'a': 'in factors: it takes 40 bytes more memory, 20 are left'}
    """
    layers, left = list(layers), room or Room()
    chosen: dict[str, str] = {}
    for layer in sorted(layers, key=lambda layer: _priority(layer, costs)):
        both = [layer.cost(form, costs) for form in (layer.composed, layer.factored)]
        after = left.after(layer)
        eases = after.eases(left)
        if both[0] > both[1] and not eases:
            chosen[layer.name] = f"in factors: {_figures(both[1], costs)}, composed {_number(both[0], costs)}"
        elif short := after.short(left):
            chosen[layer.name] = f"in factors: {short}"
        else:
            left = after
            why = f"{_figures(both[0], costs)}, in factors {_number(both[1], costs)}"
            chosen[layer.name] = f"composed: {'the budget is passed, and it is smaller so; ' if eases else ''}{why}"
    reasons = {layer.name: chosen[layer.name] for layer in layers}
    return FormChoice(frozenset(name for name, why in reasons.items() if why.startswith("composed")), reasons)


def _priority(layer: LayerForms, costs: Costs | None) -> float:
    """Return a key that sorts layers by cost saved per byte added; layers that add no byte come first."""
    more = layer.composed.weight_bytes - layer.factored.weight_bytes
    saved = layer.cost(layer.factored, costs) - layer.cost(layer.composed, costs)
    return -math.inf if more <= 0 else -saved / more


def _number(cost: float, costs: Costs | None) -> str:
    return f"{cost:,.0f}" if costs is None else f"{cost * 1e6:,.1f}"


def _figures(cost: float, costs: Costs | None) -> str:
    return f"{_number(cost, costs)} {'MACs' if costs is None else 'µs'}"


def layer_forms(network: nn.Module, x: Fields[Tensor]) -> tuple[LayerForms, ...]:
    """Return the costs in both forms of each factorized layer, for an inference of ``x`` (samples, …), which runs on fake tensors."""
    layers = factorized_layers(network)
    if not layers:
        return ()
    plain = composed_network(network)
    factored, grown, composed = (
        _works(network, x),
        _works(network, each(lambda part: torch.cat([part, part]), x)),
        _works(plain, x),
    )
    forms = []
    for name, layer in layers.items():
        work = _within(factored, name)
        costs = FormCost(work, _bytes(layer)), FormCost(_within(composed, name), _bytes(plain.get_submodule(name)))
        forms.append(LayerForms(name, *costs, at_run_time=_within(grown, name).macs < 2 * work.macs))
    return tuple(forms)


def room_for(
    network: nn.Module,
    x: Fields[Tensor],
    layers: Iterable[LayerForms],
    memory_bytes: float | None,
    file_bytes: float | None,
) -> Room:
    """Return the room that budgets leave when ``network``, in factors, infers ``x``: the budgets minus weights and activations.

    Activations are those of the form that has more. Layers that multiply their own factors count with their dense weights. None: no limit.
    """
    if memory_bytes is not None:
        at_run_time = {layer.name for layer in layers if layer.at_run_time}
        least = composed_network(network, lambda name, layer: name in at_run_time)
        memory_bytes -= _bytes(least) + max(_peak_bytes(module, x) for module in (least, composed_network(least)))
    return Room(
        math.inf if memory_bytes is None else memory_bytes, math.inf if file_bytes is None else file_bytes - _bytes(network)
    )


def choice_for(
    network: nn.Module,
    x: Fields[Tensor],
    costs: Costs | None = None,
    memory_bytes: float | None = None,
    file_bytes: float | None = None,
) -> FormChoice:
    """Return which layers of ``network`` to compose for a device that infers batches like ``x`` (samples, …).

    ``network`` is in evaluation mode and holds factors. ``costs`` None: MACs are compared. Bytes None: no limit.
    """
    layers = layer_forms(network, x)
    return choose(layers, costs, room_for(network, x, layers, memory_bytes, file_bytes)) if layers else FormChoice(frozenset())


def _works(network: nn.Module, x: Fields[Tensor]) -> dict[str, Work]:
    """Return name of a module → its own work in a forward pass over ``x``."""
    works: dict[str, Work] = {}
    tracker = LayerTracker(network)

    def observe(operation: Any, args: tuple[Any, ...], out: Any) -> None:
        counted = work_of(operation, args, out)
        if counted is not None:
            name = tracker.current()
            works[name] = works.get(name, NO_WORK) + kinds_of(operation, args, out, counted, "forward")

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, quiet(), torch.no_grad(), spelled_out(), tracker, Watcher(observe):
        network(each(fake.from_tensor, x))
    return works


def _within(works: Mapping[str, Work], name: str) -> Work:
    """Return the work of a layer and its inner modules."""
    return sum((work for part, work in works.items() if part == name or part.startswith(f"{name}.")), NO_WORK)


def _peak_bytes(network: nn.Module, x: Fields[Tensor]) -> int:
    """Return the peak bytes of activations in an inference of ``x``, input and output included."""

    def never(*_: Any) -> Any:
        raise AssertionError("an inference has no loss and no optimizer")

    def batch(samples: int) -> Batch:
        some = each(lambda part: part.new_empty(samples, *part.shape[1:]), x)
        return Batch(some, torch.zeros(samples, dtype=torch.int64))

    return Tracer(Subject(lambda: network, batch, never, never)).inference(len(first(x))).peak_bytes


def _bytes(module: nn.Module) -> int:
    return bytes_of([*module.parameters(), *module.buffers()])
