"""From what a user gives to an architecture: a reference network's name, a factory's import path, an ONNX file, or a module."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from edgefl.cost.trace import quiet
from edgefl.cost.uncompiled import uncompiled
from edgefl.errors import ConfigError, EdgeflError, nearest
from edgefl.models.base import Architecture
from edgefl.models.copies import copies_of
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.models.valueless import reason
from edgefl.registry import models
from edgefl.util.networks import is_onnx, is_own

Network = str | Path | nn.Module | Callable[[], nn.Module] | Architecture
Sample = tuple[int, ...] | str | Tensor | InputSpec
GivenInputs = Sample | Sequence[str] | Sequence[Tensor] | Mapping[str, Sample] | None


def architecture_of(
    network: Network, inputs: GivenInputs = None, classes: int | None = None, norm: str | None = None
) -> Architecture:
    """Return the architecture of ``network``. It can build the network repeatedly, also under fake tensors.

    Args:
        network: a reference network's name, ``package.module:factory``, ``file.py:factory``, ``timm:NAME``, ``torchvision:NAME``, a path
            that ends in ``.onnx``, a module, a factory, or an architecture, which is returned.
        inputs: a sample's shape, ``(3, 32, 32)`` or ``"3x32x32"``; several as name → shape, or as texts ``"ids=int64:80"``; or example
            tensors, whose first dimension is the batch. ONNX files and reference networks need none.
        classes: number of labels, for reference networks and factories with such an argument; None for the usual number.
        norm: normalisation policy, for reference networks.

    Raises:
        InputError: there is no such network, or the inputs do not fit it.

    >>> str(architecture_of("resnet18", "3x32x32")), str(architecture_of(nn.Linear(4, 2), {"input": (7, 4)}))
    ('3x32x32', 'input=7x4')
    """
    if isinstance(network, Architecture):
        return network
    if isinstance(network, Path) or (isinstance(network, str) and is_onnx(network)):
        return _from_file(Path(network), inputs, classes, norm)
    if isinstance(network, str) and not is_own(network):
        return _reference(network, _specs(inputs, None), classes, norm)
    specs = _specs(inputs, network if isinstance(network, nn.Module) else None)
    # A run trains the logits of an output that names them; costs are those of a run.
    return replace(CustomArchitecture.of(network, specs, classes, norm), logits=True)


def _reference(network: str, inputs: Mapping[str, InputSpec], classes: int | None, norm: str | None) -> Architecture:
    """Return a reference network's architecture; a shape without a type has the network's own type."""
    facts = models.facts(network)
    usual, dtype = facts["usual_input"], torch.int64 if facts.get("vocabulary") else torch.float32
    specs = inputs or {"": InputSpec(usual, dtype)}
    if list(specs) != [""] or specs[""].dtype not in (torch.float32, dtype):
        kind = "int64 token ids" if facts.get("vocabulary") else "float32"
        raise ConfigError(f"input: {network} takes one input of {kind}, such as {InputSpec(usual)}")
    return Architecture(network, specs[""].shape, facts.get("usual_classes", 10) if classes is None else classes, norm)


def check_takes(network: Architecture, data: str, classifies: bool) -> None:
    """Raise :class:`ConfigError` unless ``network`` takes a batch of its input, in training and in evaluation.

    ``classifies``: and returns logits (batch, classes). In evaluation it may not return bfloat16.
    """
    with uncompiled(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), quiet():
        module, batch = network.build(), network.samples(2)
        for training in (True, False):
            try:
                with embeddings(batch) as ids:
                    output = module.train(training)(batch)
            except EdgeflError:
                raise
            except Exception as error:  # a user's network may raise anything
                told = (
                    f"model {network.model} does not take samples {network} of {data}: {_odd_input(module, batch)}{reason(error)}"
                )
                raise ConfigError(told) from error
            for name, below in network.below.items() if isinstance(network.below, Mapping) else [("", network.below)]:
                if below > (known := ids.get(name, below)):
                    of = f"input {name}" if name else "samples"
                    raise ConfigError(
                        f"model {network.model}: {of} of {data} have ids up to {below - 1}, and its embedding has {known} rows, for ids up "
                        f"to {known - 1}; give it more rows"
                    )
            expected = (2, network.classes)
            if classifies and getattr(output, "shape", None) != expected:
                if training and getattr(bare := module.eval()(batch), "shape", None) != expected:
                    output = bare  # several outputs are one in training
                remedy = "return logits (batch, classes); a factory may take num_classes"
                if not isinstance(output, Tensor):
                    remedy = "return the logits only, or a dictionary with logits"
                raise ConfigError(
                    f"model {network.model} returns {_returned(output)} for two samples {network} of {data} with {network.classes} "
                    f"classes, expected 2x{network.classes}; {remedy}"
                )
            if not training and isinstance(output, Tensor) and output.dtype is torch.bfloat16:  # NumPy has no such type
                raise ConfigError(
                    f"model {network.model} returns bfloat16 in evaluation, expected float32; return logits.float()"
                )


def _returned(output: Any) -> str:
    """Return the shape of an output, or the shapes of what it consists of.

    >>> _returned((torch.ones(2, 10), {"hidden": torch.ones(2, 8)})), _returned(torch.ones(3))
    ('a tuple of 2x10 and a dict of 2x8', '3')
    """
    if isinstance(output, Tensor):
        return _written(output.shape)
    if isinstance(output, (tuple, list, Mapping)):
        parts = output.values() if isinstance(output, Mapping) else output
        return f"a {type(output).__name__} of {' and '.join(map(_returned, parts)) or 'nothing'}"
    return type(output).__name__


def _odd_input(module: nn.Module, batch: Any) -> str:
    """Return what is wrong if ``module`` takes ``batch`` with one of its inputs as integers instead of real numbers, or the reverse."""
    for name, tensor in batch.items() if isinstance(batch, Mapping) else ():
        real = tensor.is_floating_point()
        try:
            module({**batch, name: torch.zeros_like(tensor, dtype=torch.int64 if real else torch.float32)})
        except Exception:  # noqa: BLE001, S112 - as above; the next input may be the odd one
            continue
        kinds = ("real numbers", "integers") if real else ("integers", "real numbers")
        return f"input {name} has {kinds[0]}, and the network takes {kinds[1]} there; "
    return ""


@contextmanager
def embeddings(batch: Any) -> Iterator[dict[str, int]]:
    """Yield a table that is filled in the block: name of an input of ``batch`` ("" without names) → rows of the embedding that reads it."""
    inputs: Mapping[str, Tensor] = batch if isinstance(batch, Mapping) else {"": batch}
    rows: dict[str, int] = {}

    class Tables(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (F.embedding, F.embedding_bag, torch.embedding) and isinstance(args[0], Tensor):
                ids, table = (args[1], args[0]) if func is torch.embedding else args[:2]
                for name, tensor in inputs.items():
                    # Of a part of an input, such as one of several columns, the ids may be fewer.
                    if ids.numel() == tensor.numel() and ids.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                        rows[name] = min(len(table), rows.get(name, len(table)))
            return func(*args, **(kwargs or {}))

    with Tables():
        yield rows


def batch_in(inputs: GivenInputs) -> int | None:
    """Return the batch size of example tensors, or None where no tensor is given."""
    tensors: Any = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, (tuple, list)) else [inputs]
    sizes = {t.shape[0] for t in tensors if isinstance(t, Tensor) and t.dim()}
    if len(sizes) > 1:
        raise ConfigError(f"input: example tensors have batches of {', '.join(map(str, sorted(sizes)))}; expected one size")
    return sizes.pop() if sizes else None


def _specs(inputs: GivenInputs, module: nn.Module | None) -> dict[str, InputSpec]:
    """Return name → specification; an unnamed single input has the name ""."""
    if inputs is None or (isinstance(inputs, (str, tuple, list, Mapping)) and not inputs):
        return {}
    if isinstance(inputs, Mapping):
        return {name: _spec(entry)[1] for name, entry in inputs.items()}
    if not isinstance(inputs, (tuple, list)) or all(isinstance(size, Integral) for size in inputs):
        return dict([_spec(inputs)])
    specs: dict[str, InputSpec] = {}
    names = _positional(module) if module is not None and not isinstance(inputs[0], str) else []
    for position, entry in enumerate(inputs):
        name, spec = _spec(entry)
        name = name or (names[position] if len(inputs) > 1 and position < len(names) else "")
        if name in specs or (not name and len(inputs) > 1):
            said = f"a tensor of {_written(entry.shape)}" if isinstance(entry, Tensor) else repr(entry)
            raise ConfigError(f"input: {said} needs a name of its own among several inputs, such as ids=int64:80")
        specs[name] = spec
    return specs


def _spec(entry: Any) -> tuple[str, InputSpec]:
    if isinstance(entry, Tensor):
        if not entry.dim():
            raise ConfigError("input: an example tensor has no dimension; its first one is the batch")
        spec = InputSpec(tuple(entry.shape[1:]), entry.dtype)
    elif isinstance(entry, InputSpec):
        return "", entry
    elif isinstance(entry, str):
        return InputSpec.parse(entry)
    elif isinstance(entry, (tuple, list)) and all(isinstance(size, Integral) for size in entry):
        spec = InputSpec(tuple(map(int, entry)))
    else:
        raise ConfigError(
            f"input: got {type(entry).__name__}, expected a sample's shape such as (3, 32, 32), or an example tensor"
        )
    if any(size < 1 for size in spec.shape):
        raise ConfigError(f"input: {spec.shape} has a size below 1")
    return "", spec


def _positional(module: nn.Module) -> list[str]:
    parameters = inspect.signature(module.forward).parameters
    return [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]


def _from_file(path: Path, inputs: GivenInputs, classes: int | None, norm: str | None) -> CustomArchitecture:
    """Return the network of an ONNX file; ``inputs`` gives its free sizes other than the batch."""
    from edgefl.onnxgrad.torch_layers import network_in

    module, signature = network_in(path)
    samples = _specs(inputs, None)
    if list(samples) == [""]:
        if len(signature) != 1:
            names = ", ".join(signature) or "none"
            raise ConfigError(
                f"{path}: has {len(signature)} inputs ({names}), expected one, or a name for each shape, such as x=3x32x32"
            )
        samples = {next(iter(signature)): samples[""]}
    for name in samples:
        if name not in signature:
            raise ConfigError(
                f"{path}: input {name!r} is not in the file;{nearest(name, signature)} it has {', '.join(signature)}"
            )
    specs = {}
    for name, (dims, dtype) in signature.items():
        spec = samples.get(name) or _fixed(path, name, dims, dtype)
        if len(spec.shape) != len(dims) - 1 or any(
            isinstance(d, int) and d != s for d, s in zip(dims[1:], spec.shape, strict=True)
        ):
            raise ConfigError(f"{path}: input {name} is {_written(dims[1:])} a sample, got {spec}")
        specs[name] = InputSpec(spec.shape, dtype)
    network = CustomArchitecture(
        model=path.name, classes=classes or 0, norm=norm, factory=copies_of(module), inputs=specs, spec=str(path), logits=True
    )
    batches = {dims[0] for dims, _ in signature.values()}
    if len(batches) == 1 and isinstance(batch := batches.pop(), int) and _runs(network, batch) and not _runs(network, batch + 1):
        raise ConfigError(
            f"{path}: was exported for a batch of {batch} and computes with that number; export it with a free batch, such as"
            " dynamic_shapes of torch.onnx.export"
        )
    return network


def _runs(network: CustomArchitecture, batch: int) -> bool:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), quiet():
        try:
            network.build().eval()(network.samples(batch))
        except Exception:  # noqa: BLE001 - a graph's operators raise anything for sizes that do not fit
            return False
    return True


def _fixed(path: Path, name: str, dims: tuple[int | str, ...], dtype: torch.dtype) -> InputSpec:
    if not dims:
        raise ConfigError(f"{path}: input {name} is a single number; costs are counted over batches of samples")
    if not all(isinstance(size, int) for size in dims[1:]):
        example = "x".join(str(d) if isinstance(d, int) else "N" for d in dims[1:])
        raise ConfigError(f"{path}: input {name} is {_written(dims[1:])} a sample; give its sizes, --input {name}={example}")
    return InputSpec(tuple(int(size) for size in dims[1:]), dtype)


def _written(dims: Sequence[int | str]) -> str:
    return "x".join(re.sub(r"^$", "?", str(d)) for d in dims) or "one number"
