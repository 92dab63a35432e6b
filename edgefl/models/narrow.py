"""Narrow networks of any network: its channels are found by tracing it once, and a narrow one has the leading share of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.models.axes import Axis, NestedAxis, axes_in, freeze, leaves, unify
from edgefl.models.channels import layers, traced
from edgefl.models.comparer import Comparer, DiffersError, LastCall
from edgefl.models.gates import Recurrent
from edgefl.models.noted import Attributes, note, of_inputs, patched

PROBED = (0.75, 0.5, 0.3, 0.125)
"""Widths at which a plan is tried before it is used at any width."""


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that are cut together, or are whole at every width.

    Attributes:
        size: how many a network of full width has.
        tensors: name and dimension of the parameters and buffers that have them.
        whole: why they are whole: "input", "output", "unused", "share of a share", or an operation and its layer; "" if they are cut.
    """

    size: int
    tensors: tuple[tuple[str, int], ...]
    whole: str = ""


class Channels:
    """Which channels of a network have to be cut together, and the narrow networks that have the leading share of each.

    Every operation of the network says which dimensions of its tensors are the same: those of residual sums, of depthwise and grouped
    convolutions, of squeeze-and-excite, of attention heads, of concatenations, of gates. Inputs, outputs, and whatever an operation
    without a rule touches, stay whole. So does a share that would be one of a share: of heads × channels of a head, the larger is cut.

    The plan is tried at several widths: a narrow network has to do the same operations, with the sizes that the plan says. Where a
    module notes a size itself, such as ``head_dim``, the attribute is changed. Where this is not possible, the channels stay whole.

    Torch-Pruning finds groups of channels too. It takes operations without a rule for element-wise ones, so that a narrow network may be
    another one without a word, and it leaves sizes that a module notes itself to its user.

    Args:
        build: returns the network on the device ``meta``, at full width.
        run: computes its forward pass, from inputs that it does not make itself.

    Raises:
        ConfigError: no channel can be cut.

    >>> import copy, torch
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 10)).to("meta")
    >>> batch = torch.empty(2, 3, 4, 4, device="meta")
    >>> channels = Channels(lambda: copy.deepcopy(network), lambda module: module(batch))
    >>> channels.narrow(copy.deepcopy(network), 0.25)[3]
    Linear(in_features=8, out_features=10, bias=True)
    """

    def __init__(self, build: Callable[[], nn.Module], run: Callable[[nn.Module], Any]) -> None:
        self._build, self._run = build, run
        self._tensors, self._calls = traced(build(), run)
        self._attributes: dict[float, Attributes] = {}
        self._conflict = ""
        self._leave_one_factor()
        while not all(self._fits(width) for width in PROBED):
            self._attributes.clear()
        if not self.free:
            reasons = dict.fromkeys(
                group.whole for group in self.groups() if group.whole not in ("input", "output", "unused", "share of a share")
            )
            raise ConfigError(f"no channel of this network can be cut{': ' * bool(reasons)}{', '.join(list(reasons)[:5])}")

    @property
    def free(self) -> int:
        """How many groups of channels there are that a narrower network has fewer of."""
        return len({id(leaf) for axes in self._tensors.values() for axis in axes for leaf in leaves(axis) if not leaf.frozen})

    def groups(self) -> tuple[ChannelGroup, ...]:
        """Return all channels of the parameters and buffers, in groups of those that a narrow network has the same share of."""
        groups: dict[int, tuple[Axis, list[tuple[str, int]]]] = {}
        for name, axes in self._tensors.items():
            for dim, axis in enumerate(axes):
                for leaf in leaves(axis):
                    if leaf.size > 1:
                        groups.setdefault(id(leaf), (leaf, []))[1].append((name, dim))
        return tuple(
            ChannelGroup(axis.size, tuple(dict.fromkeys(tensors)), axis.why if axis.frozen else "")
            for axis, tensors in groups.values()
        )

    def kept(self, name: str, width: float) -> tuple[Tensor, ...]:
        """Return the entries of a parameter or buffer that a network of ``width`` has: int64 numbers for each dimension, ascending."""
        return tuple(axis.kept(width) for axis in self._tensors[name])

    def narrow(self, network: nn.Module, width: float) -> nn.Module:
        """Return ``network``, cut to ``width`` in place; ConfigError if it cannot have this width."""
        if width not in self._attributes and not self._fits(width):
            raise ConfigError(
                f"this network cannot be made {width:g} as wide: {self._conflict} works with other sizes; widths such as "
                f"{', '.join(map(str, PROBED))} are possible"
            )
        return self._cut(network, width)

    def _cut(self, network: nn.Module, width: float) -> nn.Module:
        made: dict[int, Tensor] = {}
        for path, module in network.named_modules():
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if id(tensor) not in made:  # tied weights stay tied
                    made[id(tensor)] = _leading(tensor, self.kept(f"{path}.{name}".lstrip("."), width))
                setattr(module, name, made[id(tensor)])
        for module in network.modules():  # when the tensors of its inner modules are cut too
            note(module)
        for layer, attributes in self._attributes.get(width, {}).items():
            for name, value in attributes.items():
                setattr(network.get_submodule(layer), name, value)
        return network

    def _leave_one_factor(self) -> None:
        """Leave one factor of every product free, the largest."""
        tensors = (*self._tensors.values(), *(axes for call in self._calls for axes in call.outputs))
        for product in (inner for axes in tensors for axis in axes for inner in axes_in(axis)):
            if isinstance(product, NestedAxis):
                free = [factor for factor in product.factors if any(not leaf.frozen for leaf in leaves(factor))]
                for factor in sorted(free, key=lambda factor: factor.size)[:-1]:
                    freeze(factor, "share of a share")

    def _fits(self, width: float) -> bool:
        """Change attributes of modules until the network of ``width`` runs as planned; False if the plan had to be changed instead."""
        whole, changed = self._build().eval(), 0
        attributes = self._attributes.setdefault(width, of_inputs(whole, self._calls, width))
        narrow = self._cut(whole, width)
        while (difference := self._difference(narrow, width)) is not None:
            number, sizes = difference
            call = self._calls[number]
            if patched(narrow, call, width, attributes):
                changed = number
                continue
            del self._attributes[width]
            if not self._unified(number, width, sizes):
                self._keep_whole(max(number, changed))  # a call before the changed one was as planned until then
            return False
        return True

    def _keep_whole(self, number: int) -> None:
        """Keep the channels of a call whole; if they are, those of earlier calls in its layer, or in the layers around it."""
        call, before = self._calls[number], self.free
        self._conflict, layer, scope = f"{call.name} in {call.layer or 'the network'}", call.layer, [call]
        while True:
            for axis in (axis for one in scope for axes in (*one.inputs, *one.outputs) for axis in axes):
                freeze(axis, self._conflict)
            if self.free < before:
                return
            if len(scope) == len(self._calls):
                raise ConfigError(f"no channel of this network can be cut: {self._conflict} works with other sizes")
            scope = (
                [one for one in self._calls[: number + 1] if f"{one.layer}.".startswith(f"{layer}.")] if layer else self._calls
            )
            layer = layer.rpartition(".")[0]

    def _difference(self, narrow: nn.Module, width: float) -> tuple[int, Sequence[int]] | None:
        """Return the first call that does not go as planned, and the sizes that the network wants there, as far as they are known."""
        with layers(narrow) as layer:
            comparer, last = Comparer(self._calls, width, layer), LastCall()
            try:
                with comparer, last, Recurrent(comparer.checked):
                    self._run(narrow)
            except DiffersError as error:
                return error.number, error.sizes
            except Exception:  # noqa: BLE001  a user's network may raise anything when its sizes do not fit
                coming = range(comparer.number, min(comparer.number + 3, len(self._calls)))
                alike = (n for n in coming if [len(axes) for axes in self._calls[n].outputs] == [len(last.sizes)])
                return next(alike, min(comparer.number, len(self._calls) - 1)), last.sizes
            return None

    def _unified(self, number: int, width: float, sizes: Sequence[int]) -> bool:
        """Keep an axis of a call's output whole if the network wants that, or unify it with another axis that has the wanted channels.

        Those of a head may be the ones of all heads ``// heads``.
        """
        call = self._calls[number]
        if [len(axes) for axes in call.outputs] != [len(sizes)]:
            return False
        axes = call.outputs[0]
        for place, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
            if size in (-1, axis.count(width)):
                continue
            if size == axis.size:
                freeze(axis, f"{call.name} in {call.layer or 'the network'}")
                return True
            heads = axes[place - 1].root if place else Axis(1)
            for other in (other for earlier in reversed(self._calls[:number]) for axes in earlier.outputs for other in axes):
                if other.size == axis.size and other.count(width) == size and other.root is not axis.root:
                    unify(axis, other)
                elif (
                    heads.frozen
                    and heads.size > 1
                    and other.size == heads.size * axis.size
                    and other.count(width) // heads.size == size
                ):
                    unify(other, NestedAxis((heads, axis)))
                else:
                    continue
                self._leave_one_factor()
                return True
        return False


def _leading(tensor: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Return the entries ``kept`` of ``tensor``, as a parameter if it is one."""
    entries = tensor.detach()
    for dim, numbers in enumerate(indices):
        if len(numbers) < tensor.shape[dim]:
            entries = entries.index_select(dim, numbers.to(entries.device))
    entries = entries.clone()
    return nn.Parameter(entries, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else entries
