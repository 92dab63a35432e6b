"""The user's own networks: a factory by its import path, a module, or any other builder, with any number and kind of inputs."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from edgefl.errors import ConfigError, InputError, nearest
from edgefl.models.base import Architecture

DTYPES = {
    name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
_SPEC = re.compile(r"^(?:(?P<name>[^=:]+)=)?(?:(?P<dtype>\w+):)?(?P<shape>\d+(?:x\d+)*)?$")


@dataclass(frozen=True)
class InputSpec:
    """One input of a network: a sample's shape, without the batch, and its type.

    >>> InputSpec.parse("ids=int64:80")
    ('ids', InputSpec(shape=(80,), dtype=torch.int64))
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    @classmethod
    def parse(cls, text: str) -> tuple[str, InputSpec]:
        """Return name ("" for none) and specification of ``[NAME=][DTYPE:]SHAPE``; ConfigError for another form, size 0 or unknown type."""
        match = _SPEC.match(text.strip())
        if not match or not (match["shape"] or match["dtype"]):
            raise ConfigError(f"input: {text!r} is not of the form [NAME=][DTYPE:]SHAPE, such as 3x32x32 or ids=int64:80")
        dtype = match["dtype"] or "float32"
        if dtype not in DTYPES:
            raise ConfigError(f"input: {text!r} has unknown type {dtype!r};{nearest(dtype, DTYPES)} known: {', '.join(DTYPES)}")
        shape = tuple(int(size) for size in match["shape"].split("x")) if match["shape"] else ()
        if any(size < 1 for size in shape):
            raise ConfigError(f"input: {text!r} has a size below 1")
        return match["name"] or "", cls(shape, DTYPES[dtype])

    def __str__(self) -> str:
        """Return the form that :meth:`parse` reads."""
        kind = "" if self.dtype is torch.float32 else str(self.dtype).removeprefix("torch.") + ":"
        return kind + "x".join(map(str, self.shape))

    def batch(self, samples: int) -> Tensor:
        """Return an uninitialised batch; integers are zeros, which are valid everywhere."""
        make = torch.empty if self.dtype.is_floating_point else torch.zeros
        return make(samples, *self.shape, dtype=self.dtype)


Inputs = Mapping[str, InputSpec]


@dataclass(frozen=True)
class CustomArchitecture(Architecture):
    """The user's own network: ``factory`` returns it, also under fake tensors; ``inputs`` are by name, "" for a single unnamed one."""

    input_shape: tuple[int, ...] = ()
    classes: int = 0
    norm: str | None = None
    factory: Callable[[], nn.Module] = nn.Identity
    inputs: Inputs = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.norm is not None:
            raise ConfigError(f"norm: {self.model} has its own normalisation; leave the key out")
        if not self.inputs:
            raise ConfigError(f"input: {self.model} needs the shape of a sample, such as --input 3x32x32")

    def build(self, width: float = 1.0) -> nn.Module:
        """Return the network, whose ``forward`` takes a batch of all inputs and in training gives one row of logits per sample."""
        if width != 1.0:
            raise ConfigError(
                f"{self.model} has one width, and this method makes narrower networks; choose one that factorizes, such as fedhm"
            )
        network = _called(self.factory, self.model)
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise InputError(f"{self.model} has no parameter to train: its network has none, or all are frozen")
        by_name = _takes_by_name(network, self.inputs, self.model)

        def spread(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if len(args) == 1 and isinstance(args[0], Mapping):
                return ((), dict(args[0])) if by_name else (tuple(args[0].values()), {})
            return args, kwargs

        network.register_forward_pre_hook(spread, with_kwargs=True)
        network.register_forward_hook(_read_out)
        return network

    def samples(self, count: int) -> Any:
        """Return a batch of ``count``: a tensor for a single unnamed input, else name → tensor."""
        if list(self.inputs) == [""]:
            return self.inputs[""].batch(count)
        return {name: spec.batch(count) for name, spec in self.inputs.items()}

    def __str__(self) -> str:
        """Return the inputs as they are written."""
        return ", ".join(f"{name}={spec}" if name else str(spec) for name, spec in self.inputs.items())


def _read_out(module: nn.Module, args: Any, output: Any) -> Any:
    """Flatten the output of a network into one row of logits per sample, for a loss; in evaluation only open objects."""
    output = _plain(output)
    if not module.training:
        return output
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim()]
    if not leaves:
        raise InputError(
            f"{type(module).__name__} returns no tensor of floating-point numbers with a row per sample: there is nothing to train"
        )
    rows = [leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1) for leaf in leaves]
    same = [row for row in rows if row.shape[0] == rows[0].shape[0]]
    if torch.is_grad_enabled() and not any(row.requires_grad for row in same):
        raise InputError(f"{type(module).__name__} returns values that depend on no parameter: there is nothing to train")
    return same[0] if len(same) == 1 else torch.cat(same, 1)


def _plain(output: Any) -> Any:
    """Convert outputs that behave like mappings or records, such as those of transformers, at any depth."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return {key: _plain(value) for key, value in output.items()}
    if type(output) in (tuple, list):
        return type(output)(map(_plain, output))
    return _plain(vars(output)) if hasattr(output, "__dict__") and not isinstance(output, tuple) else output


def _takes_by_name(network: nn.Module, inputs: Inputs, model: str) -> bool:
    """Whether ``forward`` takes its inputs by name; with ``*args`` alone it takes them in order."""
    parameters = inspect.signature(network.forward).parameters
    known = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not known and any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return False
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in inputs:
        if name and name not in known and not takes_any:
            hint = nearest(name, known)
            raise ConfigError(f"input: {model}.forward has no argument {name!r};{hint} it takes {', '.join(known) or 'none'}")
    return True


def factory_of(path: str) -> Callable[[], nn.Module]:
    """Return the factory that ``package.module:name`` names, also in the working directory; InputError if there is no such callable."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise InputError(f"{path!r} is not of the form package.module:factory, such as my_package.my_module:make_network")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"{path}: no module named {error.name!r} here or among the installed packages") from None
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise InputError(f"{path}: importing {module_name} raised {_said(error)}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_") and callable(getattr(found, name))]
            raise InputError(
                f"{path}: {module_name} has no {attribute!r};{nearest(attribute, names)} give a factory of a network"
            )
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        return copies_of(found)
    if not callable(found):
        raise InputError(f"{path} is {type(found).__name__}, expected a function or class that returns a torch.nn.Module")
    return found


def _called(factory: Callable[[], nn.Module], model: str) -> nn.Module:
    """Call a factory; a factory that needs real numbers (``.item()``) is called without fake tensors, and copied into them."""
    try:
        network: object = factory()
    except InputError:
        raise
    except Exception as error:  # a user's factory may raise anything
        if detect_fake_mode() is None and torch.get_default_device().type != "meta":
            raise InputError(f"{model}: the factory raised {_said(error)}") from error
        return copies_of(_for_real(factory, model))()
    if not isinstance(network, nn.Module):
        raise InputError(f"{model}: the factory returned {type(network).__name__}, expected a torch.nn.Module")
    return network


@functools.lru_cache(maxsize=1)
def _for_real(factory: Callable[[], nn.Module], model: str) -> nn.Module:
    with _disable_current_modes(), torch.device("cpu"):
        return _called(factory, model)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"


def copies_of(module: nn.Module) -> Callable[[], nn.Module]:
    """Return a factory of copies of ``module``, with fake or meta tensors under the caller's mode."""

    def build() -> nn.Module:
        fake = detect_fake_mode()
        device = torch.get_default_device()
        # deepcopy does not copy what it finds in its memo: a fake network allocates no second set of weights.
        memo: dict[int, Any] = {}
        other: Tensor
        for tensor in (*module.parameters(), *module.buffers()):
            if fake is not None:
                other = fake.from_tensor(tensor)
            else:
                other = tensor.detach().to(device) if device.type == "meta" else tensor.detach().clone()
            memo[id(tensor)] = nn.Parameter(other, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else other
        return copy.deepcopy(module, memo)

    return build
