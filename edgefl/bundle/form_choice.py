"""Which factorized layers a device runs multiplied out: per layer the cheaper form by the cost tables, as far as budgets allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from edgefl.cost.inference import spelled_out
from edgefl.cost.layers import LayerTracker
from edgefl.cost.macs import work_of
from edgefl.cost.memory import Watcher, bytes_of
from edgefl.cost.trace import Subject, Tracer, quiet
from edgefl.factor.compose import composed_network, factorized_layers
from edgefl.records import Batch

_FORWARD_SHARE = 1 / 3  # of what a layer takes in a forward and backward pass however small it is


class StepRates(Protocol):
    """What is asked of a device's table of rates (:class:`edgefl.fleet.rates.StepCosts`): seconds of one MAC and of one layer."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """Of a convolution's, a dense and a recurrent MAC, of a value, of a value of an update, and of a layer's pass."""


@dataclass(frozen=True)
class FormCost:
    """What a layer takes in one form: MACs of an inference, work on its weights included; layers that run; bytes of its weights."""

    macs: int
    layers: int
    weight_bytes: int


@dataclass(frozen=True)
class LayerForms:
    """A factorized layer, its kind of work (convolution, dense, recurrent), and what it takes in factors and multiplied out.

    ``at_run_time`` says that the layer multiplies its factors out itself, in every forward pass; what runs it holds its dense weight
    in either form.
    """

    name: str
    kind: str
    factored: FormCost
    composed: FormCost
    at_run_time: bool

    def cost(self, form: FormCost, rates: StepRates | None) -> float:
        """Return what the layer costs in a form: seconds at a device's rates, MACs where there are none."""
        if rates is None:
            return form.macs
        seconds = dict(zip(("convolution", "dense", "recurrent", "value", "update", "layer"), rates.seconds, strict=True))
        return form.macs * seconds[self.kind] + form.layers * seconds["layer"] * _FORWARD_SHARE


@dataclass(frozen=True)
class Room:
    """Bytes that are left for what weights take more when multiplied out, in memory and in the file."""

    memory_bytes: float = math.inf
    file_bytes: float = math.inf

    def after(self, layer: LayerForms) -> Room:
        """Return what is left once ``layer`` is multiplied out."""
        more = layer.composed.weight_bytes - layer.factored.weight_bytes
        return Room(self.memory_bytes - (0 if layer.at_run_time else more), self.file_bytes - more)

    def short(self, before: Room) -> str:
        """Return which limit is passed here and by how much, unless ``before`` was no better; nothing where none is."""
        for name, had, have in self._since(before):
            if have < min(0.0, had):
                return f"it takes {had - have:,.0f} bytes more {name}, {max(0.0, had):,.0f} are left"
        return ""

    def eases(self, before: Room) -> bool:
        """Whether more is left here than ``before`` of a limit that was passed there."""
        return any(had < 0 and have > had for _, had, have in self._since(before))

    def _since(self, before: Room) -> tuple[tuple[str, float, float], ...]:
        return ("memory", before.memory_bytes, self.memory_bytes), ("file", before.file_bytes, self.file_bytes)


@dataclass(frozen=True)
class Choice:
    """The layers to multiply out, and for every factorized layer the form that it gets and why."""

    composed: frozenset[str]
    reasons: Mapping[str, str] = field(default_factory=dict)


def choose(layers: Iterable[LayerForms], rates: StepRates | None = None, room: Room | None = None) -> Choice:
    """Return which of ``layers`` to multiply out: layers that then cost no more, the largest saving per byte first, while there is room.

    Without ``rates`` MACs are compared. ``room`` is what weights may take more than in factors.

    >>> slow = LayerForms("a", "dense", FormCost(300, 2, 40), FormCost(200, 1, 80), at_run_time=False)
    >>> fast = LayerForms("b", "dense", FormCost(100, 2, 40), FormCost(200, 1, 80), at_run_time=False)
    >>> choose([slow, fast]).reasons
    {'a': 'composed: 200 MACs, in factors 300', 'b': 'in factors: 100 MACs, composed 200'}
    >>> choose([slow], room=Room(memory_bytes=20)).reasons
    {'a': 'in factors: it takes 40 bytes more memory, 20 are left'}
    """
    layers, left = list(layers), room or Room()
    chosen: dict[str, str] = {}
    for layer in sorted(layers, key=lambda layer: _priority(layer, rates)):
        costs = [layer.cost(form, rates) for form in (layer.composed, layer.factored)]
        after = left.after(layer)
        eases = after.eases(left)
        if costs[0] > costs[1] and not eases:
            chosen[layer.name] = f"in factors: {_figures(costs[1], rates)}, composed {_number(costs[0], rates)}"
        elif short := after.short(left):
            chosen[layer.name] = f"in factors: {short}"
        else:
            left = after
            why = f"{_figures(costs[0], rates)}, in factors {_number(costs[1], rates)}"
            chosen[layer.name] = f"composed: {'the budget is passed, and it is smaller so; ' if eases else ''}{why}"
    reasons = {layer.name: chosen[layer.name] for layer in layers}
    return Choice(frozenset(name for name, why in reasons.items() if why.startswith("composed")), reasons)


def _priority(layer: LayerForms, rates: StepRates | None) -> float:
    """Order by cost saved per byte added; what adds none comes first."""
    more = layer.composed.weight_bytes - layer.factored.weight_bytes
    saved = layer.cost(layer.factored, rates) - layer.cost(layer.composed, rates)
    return -math.inf if more <= 0 else -saved / more


def _number(cost: float, rates: StepRates | None) -> str:
    return f"{cost:,.0f}" if rates is None else f"{cost * 1e6:,.1f}"


def _figures(cost: float, rates: StepRates | None) -> str:
    return f"{_number(cost, rates)} {'MACs' if rates is None else 'µs'}"


def layer_forms(network: nn.Module, x: Tensor) -> tuple[LayerForms, ...]:
    """Return what every factorized layer of ``network`` takes to infer ``x`` (samples, …), in both forms.

    Nothing is computed: the network runs on tensors without values.
    """
    layers = factorized_layers(network)
    if not layers:
        return ()
    plain = composed_network(network)
    factored, grown, composed = _macs(network, x), _macs(network, torch.cat([x, x])), _macs(plain, x)
    found = []
    for name, layer in layers.items():
        macs, parts = _within(factored, name)
        twice, _ = _within(grown, name)
        dense = plain.get_submodule(name)
        forms = FormCost(macs, parts, _bytes(layer)), FormCost(_within(composed, name)[0], 1, _bytes(dense))
        found.append(LayerForms(name, _kind(dense), *forms, at_run_time=twice < 2 * macs))
    return tuple(found)


def room_for(
    network: nn.Module, x: Tensor, layers: Iterable[LayerForms], memory_bytes: float | None, file_bytes: float | None = None
) -> Room:
    """Return what budgets leave for weights when ``network``, in factors, infers ``x``: the network and its activations taken off.

    Activations are those of the form that has more of them. A weight that the network multiplies out itself counts as multiplied out.
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
    x: Tensor,
    rates: StepRates | None = None,
    memory_bytes: float | None = None,
    file_bytes: float | None = None,
) -> Choice:
    """Return which layers of ``network`` a device runs multiplied out, to infer ``x`` (samples, …) at a time.

    ``network`` is in evaluation mode with its factors inside; a limit of None is none.
    """
    layers = layer_forms(network, x)
    return choose(layers, rates, room_for(network, x, layers, memory_bytes, file_bytes)) if layers else Choice(frozenset())


def _macs(network: nn.Module, x: Tensor) -> dict[str, int]:
    """Return module → MACs of a forward pass over ``x``."""
    found: dict[str, int] = {}
    tracker = LayerTracker(network)

    def observe(operation: Any, args: tuple[Any, ...], out: Any) -> None:
        work = work_of(operation, args, out)
        if work is not None and work.macs:
            found[tracker.current()] = found.get(tracker.current(), 0) + work.macs

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, quiet(), torch.no_grad(), spelled_out(), tracker, Watcher(observe):
        network(fake.from_tensor(x))
    return found


def _within(macs: Mapping[str, int], name: str) -> tuple[int, int]:
    """Return the MACs of a layer and of what it is made of, and how many parts have some."""
    parts = [count for part, count in macs.items() if part == name or part.startswith(f"{name}.")]
    return sum(parts), max(1, len(parts))


def _peak_bytes(network: nn.Module, x: Tensor) -> int:
    """Return the peak bytes of activations of an inference of ``x``, input and output included."""

    def never(*_: Any) -> Any:
        raise AssertionError("an inference has no loss and no optimizer")

    def batch(samples: int) -> Batch:
        return Batch(x.new_empty(samples, *x.shape[1:]), torch.zeros(samples, dtype=torch.int64))

    return Tracer(Subject(lambda: network, batch, never, never)).inference(len(x)).peak_bytes


def _bytes(module: nn.Module) -> int:
    return bytes_of([*module.parameters(), *module.buffers()])


def _kind(layer: nn.Module) -> str:
    if isinstance(layer, nn.RNNBase):
        return "recurrent"
    return "convolution" if isinstance(layer, nn.Conv2d) else "dense"
