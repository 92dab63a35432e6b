"""Where a network can be cut: the positions of its forward pass where a single tensor carries everything to the rest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from edgefl.errors import ConfigError
from edgefl.models.valueless import reason
from edgefl.util.tensors import tensors_in


@dataclass(frozen=True)
class Cut:
    """A position of the forward pass: the moment before ``layer`` runs for the first time.

    Attributes:
        layer: path of the module that runs next. :func:`carried` finds the tensor in its arguments.
        read: names of the parameters and buffers that are used before.
        ran: paths of the modules that began to run before.
        ended: paths of the modules that run before only.
        channels: how many values of a feature the tensor has.
        axis: the tensor's axis of these values: 1 in front of a convolution, else the last.
        sides: sizes of its other axes, without the samples: height and width of a feature map, the number of tokens.
    """

    layer: str
    read: frozenset[str]
    ran: frozenset[str]
    ended: frozenset[str]
    channels: int
    axis: int
    sides: tuple[int, ...]


@dataclass(frozen=True)
class Cuts:
    """The cuts of a network, from its input to its output; a block is what lies between two of them.

    Attributes:
        outputs: how many values the network returns per sample.
    """

    cuts: tuple[Cut, ...]
    outputs: int

    @property
    def blocks(self) -> int:
        """How many blocks there are. The classifier belongs to the last."""
        return len(self.cuts) + 1

    def check_several(self, problem: str, smallest: float) -> None:
        """Raise :class:`ConfigError`, beginning with ``problem``, if ``smallest``, a tier, is below 1 and there is one block only."""
        if self.blocks == 1 and smallest < 1:
            raise ConfigError(
                f"{problem}: between its first layer and its classifier, no single tensor carries everything to the next layer; give one "
                "tier, --tiers 1, or another method"
            )


def carried(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the first floating-point tensor among the arguments of a module; None if there is none."""
    return next((tensor for tensor in tensors_in([args, kwargs]) if tensor.is_floating_point()), None)


def cuts_of(network: nn.Module, batch: Any, samples: int) -> Cuts:
    """Return the cuts of ``network`` (on the ``meta`` device) for ``batch``, ``samples`` samples on the same device.

    A cut lies before a module with a weight of two or more dimensions, and between two cuts a new weight is used. At a cut, one tensor with
    a row for every sample has all values that depend on both the input and the weights, and that are used later. A mask that depends on
    the input alone may be used on both sides. A weight with two names (tied layers) must be used on one side only.

    ConfigError: the network does not run without values.
    """
    flow = _Flow(network.train(), batch)
    try:
        with torch.no_grad(), flow:
            output = network(batch)
    except Exception as error:  # a user's network may raise anything
        raise ConfigError(f"the network cannot be cut into blocks: {reason(error)}") from error
    finally:
        flow.remove_hooks()
    flow.use(tensors_in(list(output.values()) if isinstance(output, Mapping) else output))
    cuts: list[Cut] = []
    for entry in flow.entries:
        cut = flow.cut_at(entry, samples)
        if cut is not None and flow.weights & (cut.read - (cuts[-1].read if cuts else frozenset())):
            cuts.append(cut)
    if cuts and len(flow.weights - cuts[-1].read) == 1:  # only the classifier follows
        cuts.pop()
    return Cuts(tuple(cuts), output.shape[-1] if isinstance(output, Tensor) and output.dim() > 1 else 1)


def shortened(network: nn.Module, cut: Cut) -> nn.Module:
    """Return ``network`` without the layers and tensors after ``cut``, changed in place: it runs up to ``cut.layer`` only."""
    gone: list[str] = []
    for path, module in list(network.named_modules()):
        if not path or path.startswith(tuple(gone)) or isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            continue
        names = {f"{path}.{name}" for name in module.state_dict()}
        if path == cut.layer or (names and path not in cut.ran and not names & cut.read):
            parent, _, child = path.rpartition(".")
            setattr(network.get_submodule(parent), child, nn.Identity())
            gone.append(f"{path}.")
    for path, module in network.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter is not None and f"{path}.{name}".lstrip(".") not in cut.read:
                setattr(module, name, None)
    return network


@dataclass(frozen=True)
class _Entry:
    """The first time that a module begins to run: after how many operations, and the tensor that it is given."""

    path: str
    time: int
    tensor: Tensor
    number: int


class _Flow(TorchDispatchMode):
    """Follows which values of a forward pass depend on its input and on its weights, and when each is used for the last time."""

    def __init__(self, network: nn.Module, batch: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._network = network
        self._names: dict[int, list[str]] = {}
        self.weights: frozenset[str] = frozenset()
        for named in (network.named_parameters, network.named_buffers):
            for name, tensor in named(remove_duplicate=False):
                self._names.setdefault(_storage(tensor), []).append(name)
        self._matrices = {name for name, parameter in network.named_parameters() if parameter.dim() > 1}
        self._of_input = {_storage(tensor) for tensor in tensors_in(batch)}
        self._of_weights: set[int] = set()
        self._made: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._reads: dict[int, list[int]] = {}
        self._time = 0
        self._alive: list[Tensor] = list(tensors_in(batch))  # a storage's identity is good as long as it lives
        self.entries: list[_Entry] = []
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._handles: list[Any] = []
        for path, module in network.named_modules():
            self._handles += [
                module.register_forward_pre_hook(self._entering(path), with_kwargs=True),
                module.register_forward_hook(self._leaving(path)),
            ]

    def remove_hooks(self) -> None:
        """Leave the network as it was."""
        for handle in self._handles:
            handle.remove()

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            tensor = carried(args, kwargs)
            if path not in self._first and tensor is not None:
                self.entries.append(_Entry(path, self._time, tensor, len(self._first)))
                self._alive.append(tensor)
            self._first.setdefault(path, len(self._first))

        return enter

    def _leaving(self, path: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._last[path] = self._time

        return leave

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        storages = [_storage(tensor) for tensor in tensors_in([args, kwargs])]
        self._use(storages)
        of_input = any(one in self._of_input for one in storages)
        of_weights = any(one in self._of_weights or one in self._names for one in storages)
        for tensor in tensors_in(out):
            storage = _storage(tensor)
            if storage not in self._names:
                self._made.setdefault(storage, self._time)
                self._of_input |= {storage} if of_input else set()
                self._of_weights |= {storage} if of_weights else set()
                self._alive.append(tensor)
        self._time += 1
        return out

    def _use(self, storages: Iterable[int]) -> None:
        for storage in storages:
            self._used[storage] = self._time
            for name in self._names.get(storage, ()):
                self.weights |= {name} & self._matrices
            if storage in self._names:
                self._reads.setdefault(storage, []).append(self._time)

    def use(self, tensors: Iterable[Tensor]) -> None:
        """Count the outputs of the network as used at the end."""
        self._use(map(_storage, tensors))

    def cut_at(self, entry: _Entry, samples: int) -> Cut | None:
        """Return the cut before ``entry``, None if there is none."""
        time, tensor, module = entry.time, entry.tensor, self._network.get_submodule(entry.path)
        both = self._of_input & self._of_weights
        alive = {one for one in both if self._made[one] < time <= self._used.get(one, -1)}
        weighted = next((part for part in module.modules() if any(p.dim() > 1 for p in part.parameters(recurse=False))), None)
        split = any(len(self._names[one]) > 1 and min(times) < time <= max(times) for one, times in self._reads.items())
        if weighted is None or split or tensor.dim() < 2 or len(tensor) != samples or alive != {_storage(tensor)}:
            return None
        before = frozenset(path for path, number in self._first.items() if number < entry.number)
        read = {name for one, times in self._reads.items() if min(times) < time for name in self._names[one]}
        ended = frozenset(path for path in before if self._last[path] <= time)
        modules = {path: self._network.get_submodule(path) for path in before}
        buffers = {f"{path}.{name}".lstrip(".") for path, m in modules.items() for name, _ in m.named_buffers(recurse=False)}
        axis = 1 if isinstance(weighted, nn.modules.conv._ConvNd) else tensor.dim() - 1
        sides = tuple(size for number, size in enumerate(tensor.shape) if number not in (0, axis))
        return Cut(entry.path, frozenset(read | buffers), before, ended, tensor.shape[axis], axis, sides)


def _storage(tensor: Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata
    return identity
