"""Your own networks, from a factory's import path, a module or a builder, with any number and kind of inputs."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from edgefl.errors import ConfigError, InputError, nearest
from edgefl.models.attention import closed, opened, unhinted
from edgefl.models.base import Architecture, Unfilled
from edgefl.models.copies import as_written, check_network, copies_of
from edgefl.models.factory import Factory, factory_of, fitted, onnx_sha256, sources_sha256
from edgefl.models.input_spec import InputSpec
from edgefl.models.narrow import Channels
from edgefl.models.outputs import logits_of, read_out, unwrapped
from edgefl.models.ties import named_fully, named_once
from edgefl.models.unlike import Unlike
from edgefl.models.valueless import has_values, on_meta, reason
from edgefl.models.weights import WeightsFile
from edgefl.util.compute import uncompiled_from_here
from edgefl.util.fields import Fields, each
from edgefl.util.modules import said
from edgefl.util.networks import is_onnx, title_of

Inputs = Mapping[str, InputSpec]
_OF_HOOKS = (__name__, read_out.__module__, opened.__module__)
"""The modules that define the hooks of :meth:`CustomArchitecture.build` and of its layers."""


def architecture_in(fields: Mapping[str, Any]) -> Architecture:
    """Return the architecture of :meth:`Architecture.fields`, in this or another process; InputError if there is no such network here."""
    if "networks" in fields:
        return Unlike.of({label: architecture_in(network) for label, network in fields["networks"].items()})
    weights = WeightsFile(**fields["weights"]) if "weights" in fields else None
    if "spec" not in fields:
        return Architecture(**{**fields, "input_shape": tuple(fields["input_shape"]), "weights": weights})
    inputs = {name: InputSpec.parse(text)[1] for name, text in fields["inputs"].items()}
    return replace(
        CustomArchitecture.of(fields["spec"], inputs, fields["classes"]),
        weights=weights,
        raw=fields["raw"],
        logits=fields["logits"],
    )


@dataclass(frozen=True)
class CustomArchitecture(Architecture):
    """Your own network; ConfigError if ``norm`` is set or ``inputs`` is empty.

    Attributes:
        model: its name in messages.
        factory: returns the network, also on the ``meta`` device and under fake tensors.
        inputs: name → specification; "" for a single input without a name; 0, 1, … for several in the order of ``forward``.
        spec: the name by which any process finds the factory; empty if there is none.
        raw: whether a loss gets what ``forward`` returns. Otherwise it gets all floating-point outputs as logits (batch, …).
        logits: whether the network returns the :func:`~edgefl.models.outputs.logits_of` its output only.
        as_given: whether attention stays torch's own module. Otherwise it has linear layers, which methods factorize and cut.
    """

    input_shape: tuple[int, ...] = ()
    classes: int = 0
    norm: str | None = None
    factory: Callable[[], nn.Module] = nn.Identity
    inputs: Inputs = field(default_factory=dict, hash=False)
    spec: str = ""
    raw: bool = False
    logits: bool = False
    as_given: bool = False

    @classmethod
    def of(cls, network: str | nn.Module | Factory, inputs: Inputs, classes: int | None = None, norm: str | None = None) -> Self:
        """Return the architecture of a network's ``spec``, a module or a factory, which gets the shape and ``classes`` if it takes them.

        Raises:
            InputError: there is no such factory, or importing it raised an error.
            ConfigError: ``norm`` is set, or ``inputs`` is empty.
        """
        spec = network if isinstance(network, str) else ""
        source: Any = as_written(factory_of(network) if isinstance(network, str) else network)
        shape = inputs[""].shape if list(inputs) == [""] else ()
        name = title_of(spec) if spec else getattr(source, "__name__", type(source).__name__)
        factory = copies_of(source) if isinstance(source, nn.Module) else fitted(source, shape, classes or 0, name)
        return cls(name, shape, classes or 0, norm, factory=factory, inputs=inputs, spec=spec)

    def __post_init__(self) -> None:
        if self.norm is not None:
            raise ConfigError(f"norm: {self.model} has its own normalisation; leave the key out")
        if not self.inputs:
            raise ConfigError(f"input: {self.model} needs the shape of a sample, such as --input 3x32x32")

    def build(self, width: float = 1.0) -> nn.Module:
        """Return the network. Its ``forward`` takes a batch of all inputs, and in training returns logits (batch, …) for a loss.

        ConfigError if an input is no argument of ``forward``, or the network cannot have ``width``; InputError for a factory or network
        that cannot train.
        """
        return self.weighted(self._whole()) if width == 1.0 else self.channels.narrow(self._whole(), width)

    def entries(self, name: str, width: float, within: float = 1.0) -> tuple[Tensor, ...] | None:
        """See :meth:`Architecture.entries`: channels that are concatenated or split into heads are not the leading ones."""
        narrow, wide = (self.channels.kept(name, share) for share in (width, within))
        return tuple(torch.searchsorted(outer, inner) for outer, inner in zip(wide, narrow, strict=True))

    @cached_property
    def channels(self) -> Channels:
        """Which channels have to be cut together, found by tracing the network; ConfigError if none can be cut."""

        def run(network: nn.Module) -> Any:
            with on_meta():
                return network(batch)

        try:
            with _disable_current_modes():
                with torch.device("meta"):
                    batch = self.samples(2)
                return Channels(self.skeleton, run)
        except ConfigError as error:
            raise ConfigError(f"{self.model}: {error}; choose a method that factorizes, such as fedhm") from error
        except InputError:
            raise
        except Exception as error:  # a user's network may raise anything
            said = f"its channels cannot be traced: {reason(error)}"
            raise ConfigError(f"{self.model}: {said}; choose a method that factorizes, such as fedhm") from error

    @property
    def vocabulary(self) -> int:
        """0: how many token ids the network knows is not known."""
        return 0

    @property
    def below(self) -> Fields[int]:
        """See :attr:`Architecture.below`."""
        below: Fields[int] = each(lambda spec: spec.below, self.specs)
        return below

    @property
    def specs(self) -> Fields[InputSpec]:
        """The inputs of a sample: ``inputs``, or the only one without a name."""
        return self.inputs.get("", self.inputs)

    @property
    def labels(self) -> int:
        """1: a sample of a user's network has one label."""
        return 1

    @cached_property
    def sources_sha256(self) -> str:
        """A hash of the files that define the network."""
        if is_onnx(self.spec):
            return onnx_sha256(self.spec)
        return sources_sha256(self.factory, self.skeleton())

    def fields(self) -> dict[str, Any]:
        """See :meth:`Architecture.fields`."""
        inputs = {name: str(spec) for name, spec in self.inputs.items()}
        return super().fields() | {"spec": self.spec, "inputs": inputs, "raw": self.raw, "logits": self.logits}

    def _whole(self) -> nn.Module:
        network = _called(self.factory, self.model)
        uncompiled_from_here()
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise InputError(f"{self.model} has no parameter to train: its network has none, or all are frozen")
        network = unhinted(network) if self.as_given else opened(network)
        by_name = _takes_by_name(network, self.inputs, self.model)

        def spread(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if len(args) == 1 and isinstance(args[0], Mapping):
                return ((), dict(args[0])) if by_name else (tuple(args[0][name] for name in self.inputs), {})
            return args, kwargs

        for module in network.modules():
            for name, buffer in list(module._buffers.items()):
                # Counters, tables of indices, and what forward sets: each copy has its own, and none is sent.
                if buffer is None or not buffer.is_floating_point():
                    module.register_buffer(name, buffer, persistent=False)
        if self.weights is not None and has_values():
            self.weights.fill(network)
        network.register_forward_pre_hook(spread, with_kwargs=True)
        if self.logits:
            network.register_forward_hook(lambda module, args, output: logits_of(output))
        network.register_forward_hook(unwrapped if self.raw else read_out)
        return named_once(network)

    def bare(self, network: nn.Module) -> nn.Module:
        """Take from ``network`` the hooks that read its inputs and outputs, and put its counters back into its ``state_dict``."""
        with torch.device("meta"), Unfilled():
            original = _called(self.factory, self.model)
        if type(network) is not type(original):  # several networks in one read each other's outputs
            return network
        saved = original.state_dict()
        for name, module in network.named_modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for key in [key for key, hook in hooks.items() if getattr(hook, "__module__", "") in _OF_HOOKS]:
                    del hooks[key]
            for kind, buffer in list(module.named_buffers(recurse=False)):
                if f"{name}.{kind}".lstrip(".") in saved:
                    module.register_buffer(kind, buffer)
        return closed(named_fully(network), original)

    def samples(self, count: int) -> Any:
        """Return a batch of ``count`` samples: a tensor for a single unnamed input, else name → tensor."""
        return each(lambda spec: spec.batch(count), self.specs)

    def __str__(self) -> str:
        """Return the inputs in the form that :meth:`InputSpec.parse` reads."""
        return ", ".join(f"{name}={spec}" if name else str(spec) for name, spec in self.inputs.items())


def _takes_by_name(network: nn.Module, inputs: Inputs, model: str) -> bool:
    """Return whether ``forward`` takes its inputs by name; with ``*args`` alone, and without names, it takes them in order.

    ConfigError: it has no such argument, or needs another one.
    """
    parameters = inspect.signature(network.forward).parameters
    names = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = {p.kind for p in parameters.values()} & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    in_order = all(map(str.isdigit, inputs))
    if in_order or (not names and inspect.Parameter.VAR_POSITIONAL in takes_any):
        if len(inputs) > len(names) and not takes_any:
            raise ConfigError(
                f"input: {model}.forward takes {len(names)} ({', '.join(names) or 'none'}), got {len(inputs)} inputs"
            )
        return False
    for name in inputs:
        if name and name not in names and inspect.Parameter.VAR_KEYWORD not in takes_any:
            hint = nearest(name, names)
            raise ConfigError(f"input: {model}.forward has no argument {name!r};{hint} it takes {', '.join(names) or 'none'}")
    needed = [name for name in names if parameters[name].default is inspect.Parameter.empty]
    if "" not in inputs and (missing := [name for name in needed if name not in inputs]):
        raise ConfigError(f"input: {model}.forward needs {missing[0]!r}, got {', '.join(inputs)}; give it too")
    return True


def _called(factory: Callable[[], nn.Module], model: str) -> nn.Module:
    """Return the network of a factory. If it fails under fake tensors, as with ``.item()``, a real network is copied into fake ones."""
    try:
        network: object = factory()
    except InputError:
        raise
    except Exception as error:  # a user's factory may raise anything
        if has_values():
            raise InputError(f"{model}: the factory raised {said(error)}") from error
        return copies_of(_for_real(factory, model))()
    if not isinstance(network, nn.Module):
        raise InputError(f"{model}: the factory returned {type(network).__name__}, expected a torch.nn.Module")
    whole: nn.Module = as_written(network)
    check_network(whole, model)
    return whole


@functools.lru_cache(maxsize=1)
def _for_real(factory: Callable[[], nn.Module], model: str) -> nn.Module:
    with _disable_current_modes(), torch.device("cpu"), torch.random.fork_rng(devices=[]):
        return _called(factory, model)
