"""The bundle of a network that was trained elsewhere, as it is or cut by a method, and the line of rounds that it begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.bundle.other_formats import check_formats
from edgefl.config import RunConfig
from edgefl.data import drawn
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import BundleError, ConfigError, InputError, first_line
from edgefl.models.base import Architecture, named_tensors
from edgefl.models.copies import copies_of
from edgefl.models.custom import CustomArchitecture
from edgefl.models.valueless import reason
from edgefl.planning.network import architecture_of, embeddings
from edgefl.planning.profile import method_and_tiers
from edgefl.registry import Options
from edgefl.rng import generator, torch_seeded
from edgefl.run.bundle import Wanted
from edgefl.run.checks import check_preparation
from edgefl.run.folder import Notify, beside
from edgefl.run.line import begin
from edgefl.util.compute import one_thread
from edgefl.util.fields import Fields, each, first, named
from edgefl.util.files import check_free
from edgefl.util.keys import Chosen, SigningKey

if TYPE_CHECKING:
    from edgefl.bundle.forms import Form

_SEED = 0
_ALONE = (
    "the network was exported as an object of Python, which fed-round does not find again; export it by its name: "
    "edgefl export --model file.py:factory --weights FILE"
)


@one_thread()
def export_network(
    network: nn.Module | str,
    samples: Fields[Tensor] | None,
    out: Path | str,
    *,
    weights: Path | str | None = None,
    data: Any = None,
    data_options: Options | None = None,
    loss: Any = None,
    method: str | None = None,
    tiers: Sequence[float] | None = None,
    method_options: Options | None = None,
    optimizer: Literal["momentum", "sgd", "adam"] = "momentum",
    lr: float = 0.05,
    momentum: float = 0.9,
    batch_size: int = 16,
    epochs: int = 1,
    classes: int | None = None,
    class_names: Sequence[str] = (),
    preprocessing: Mapping[str, Any] | str | None = None,
    form: Form = "auto",
    quantize: Literal["int8"] | None = None,
    fp16: bool = False,
    client: bool = False,
    also: Sequence[str] = (),
    operators: bool = False,
    sign: Chosen = None,
    lasts_s: float | None = None,
    notify: Notify | None = None,
) -> Path:
    """Write a bundle for a network with its present weights, trained by cross-entropy or a ``loss``, and return its folder.

    Without a method, its only tier is the network as it is. A method cuts or factorizes it for each tier, and adds its own terms to the
    loss. Tensors that the network lacks, such as those of early exits, are drawn at random. A warm-up of the method counts as over.

    A network that is given by its name also begins a line of rounds, in the folder ``OUT-run`` beside the bundle: ``fed_round``
    aggregates the updates of devices that train it.

    Args:
        network: (samples, …) → logits (samples, classes), also as the entry ``logits`` of a dictionary; its parameters with
            ``requires_grad`` are trained. Or its name, as :class:`RunConfig` takes one, such as ``file.py:factory``.
        samples: at least two samples (n, …): float32, or int64 ids. Their smallest and largest at each position are taken as those of all
            samples. Several inputs: name of the argument of ``forward`` → such samples. None: those of ``data``.
        out: must not exist, or be empty.
        weights: of a network that is given by its name, a safetensors file or a state_dict of torch; None: as it is built.
        data: a data set, as :class:`RunConfig` takes one: every tier is evaluated on its held-out samples, in every round.
        data_options: keys of :class:`RunConfig` about it, such as ``label`` and ``held_out``.
        loss: what devices minimise, as :class:`RunConfig` takes one; without ``data`` and ``classes`` its targets have the shape of
            the outputs. None: cross-entropy.
        method: a method whose server begins with a dense network, such as ``fedhm``, ``heterofl`` or ``depthfl``; None: no method.
        tiers: a ratio in (0, 1] for each tier, largest first; None: the method's own.
        method_options: options of the method.
        optimizer: ``momentum``, ``sgd`` or ``adam``, with ``momentum`` as its β₁.
        lr: learning rate with which a device trains unless it is told otherwise.
        momentum: its momentum.
        batch_size: its samples per step.
        epochs: its passes over its samples.
        classes: number of labels, for a factory that takes it, and for a ``loss`` of labels.
        class_names: a name for each class of a network that is given as an object; none: the numbers.
        preprocessing: how devices prepare samples, as ``export/README.md`` specifies, of several inputs by name; None: they are used as
            they are. With ``data``, as :class:`RunConfig` takes it.
        form: of factorized layers; ``auto`` is ``factored``, as no tier is for a known device.
        quantize: "int8" writes 8-bit variants of each forward graph too, calibrated on ``data``, or else on ``samples``.
        fp16: whether 16-bit variants are written too.
        client: whether the Python, TypeScript and browser clients are put beside the graphs.
        also: export formats for other runtimes, ``executorch`` and ``litert``, for inference of one sample.
        operators: whether ``required_operators.config`` is written too, for a reduced build of onnxruntime.
        sign: PEM file of an Ed25519 private key to sign the bundle with; None: the user's own key, which is made at its first use; False:
            the bundle is not signed, and devices refuse it unless told otherwise.
        lasts_s: seconds after which devices refuse the bundle; None: there is no end.
        notify: called with a line of text for the user, such as the accuracy on ``data``.

    Raises:
        ConfigError: a setting of training is out of range.
        InputError: ``samples``, the output or ``class_names`` do not fit together; an operator has no gradient rule; a name or option is
            unknown; or the method cannot begin with the network's weights.
        EdgeflError: the network cannot be exported, or its training graph differs from torch.
        BundleError: ``out``, or the folder of the line, exists and is not empty.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Mish(), nn.Linear(8, 3))
        >>> folder = export_network(network, torch.randn(2, 4), tempfile.mkdtemp(), method="heterofl", tiers=(1, 0.5))
        >>> sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.onnx"))[:4]
        ['0.5/forward.onnx', '0.5/predict.onnx', '0.5/train.onnx', '1/forward.onnx']
    """
    folder, by_name = Path(out), isinstance(network, str)
    line = beside(folder) if by_name else None
    for path in (folder, *([line] if line else [])):
        check_free(path, BundleError)
    if weights is not None and not by_name:
        raise ConfigError("weights: a network that is given as an object has its own; give its name, such as file.py:factory")
    _, ratios = method_and_tiers(method, method_options, tiers)
    keys = {
        "optimizer": optimizer, "lr": lr, "momentum": momentum, "batch_size": batch_size, "local_epochs": epochs, "weight_decay": 0.0,
        "method": method or "fedavg", "method_options": dict(method_options or {}), "tiers": ratios, "loss": loss, "weights": weights,
        "clients": 2, "partition": "iid", "seed": _SEED,
    }  # fmt: skip
    _checked(keys)
    check_formats(also)
    key = SigningKey.chosen(sign)
    if isinstance(network, nn.Module):
        network = copies_of(network)()
    keys |= {"model": network} | _data_keys(network, samples, data, classes, class_names, loss, preprocessing)
    keys |= data_options or {}
    alone = "" if by_name else _ALONE
    wanted = Wanted(form, quantize == "int8", fp16, client, tuple(also), operators, key, lasts_s, sized=False, alone=alone)
    begin(_checked(keys), folder, wanted, line, notify or (lambda message: None))
    return folder


def _data_keys(
    network: nn.Module | str,
    samples: Fields[Tensor] | None,
    data: Any,
    classes: int | None,
    class_names: Sequence[str],
    loss: Any,
    preprocessing: Any,
) -> dict[str, Any]:
    """Return the keys of a configuration about its data: those that are given, or samples that are drawn."""
    if data is not None or samples is None:
        if data is None or class_names:
            raise ConfigError("samples: expected samples, or data, which have their own names of classes")
        return {"dataset": data, "preprocessing": preprocessing}
    if class_names and isinstance(network, str):
        raise ConfigError("class_names: a network that is given by its name takes those of data; leave them out, or give data")
    _check_samples(samples)
    how = preprocessing if isinstance(preprocessing, Mapping) else {}
    check_preparation("", how, samples)
    architecture, arrays = architecture_of(network, samples, classes), each(lambda x: x.detach().numpy().copy(), samples)
    labels, targets = _outputs_of(architecture, samples, class_names, loss is not None and not (classes or class_names))
    if isinstance(network, nn.Module):
        return {"dataset": _given(arrays, labels, targets, class_names, preprocessing)}
    return {"dataset": drawn.name_of(arrays, labels, targets), "preprocessing": json.dumps(how) if how else preprocessing}


def samples_for(network: str, inputs: Sequence[str], classes: int | None = None) -> Any:
    """Return two drawn samples for the network of a name, as ``edgefl profile`` accepts it; InputError if it takes none."""
    architecture = architecture_of(network, inputs, classes)
    try:
        return _examples_for(architecture.build(), architecture.samples(2))
    except Exception as error:  # networks raise many types
        raise InputError(f"{network} does not take samples {architecture}: {reason(error)}") from error


def _examples_for(network: nn.Module, samples: Fields[Tensor]) -> Any:
    """Return samples like ``samples`` with random values: normal ones, or ids of the embedding that reads them, else 0 and 1."""
    with torch.no_grad(), embeddings(samples) as rows:
        network.eval()(samples)

    def example(like: Tensor, known: int | None) -> Tensor:
        if like.is_floating_point():
            return torch.randn(like.shape)
        found = torch.randint(known or 2, like.shape)
        found[-1] = (known or 2) - 1  # ids are below the largest of the samples
        if known is None and like.dim() > 1:
            found[..., 0] = 1  # no sample is empty
        return found

    with torch_seeded(generator(_SEED, "samples")):
        return each(
            example, samples, {name: rows.get(name) for name in samples} if isinstance(samples, Mapping) else rows.get("")
        )


def _checked(keys: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of the rounds that the export begins; ConfigError if a key is wrong."""
    try:
        return RunConfig.of(keys)
    except ConfigError as error:
        raise ConfigError(str(error).replace("local_epochs", "epochs")) from None


def _outputs_of(
    architecture: Architecture, samples: Fields[Tensor], class_names: Sequence[str], compared: bool
) -> tuple[int, tuple[int, ...] | None]:
    """Return the number of labels, and None; where outputs are ``compared`` with targets of their shape, 0 and that shape."""
    if compared and isinstance(architecture, CustomArchitecture):
        architecture = replace(architecture, raw=True, logits=False)
    title, network = architecture.model, architecture.build()
    if empty := [name for name, tensor in named_tensors(network).items() if not tensor.numel()]:
        raise InputError(f"{title}: {empty[0]} has no values, and no place in a bundle; remove it from the network")
    if compared:
        return 0, tuple(_outputs(title, network, samples).shape[1:])
    return _classes(title, network, samples, class_names), None


def _given(samples: Any, classes: int, targets: tuple[int, ...] | None, class_names: Sequence[str], how: Any) -> Dataset:
    """Return the data set of the samples of a network that was given as an object."""
    count, rng = len(first(samples)), generator(_SEED, "targets")
    y = np.arange(count) % classes if targets is None else rng.random((count, *targets), np.float32)
    below = each(lambda x: 0 if x.dtype == np.float32 else int(x.max()) + 1, samples)
    return drawn.of_samples(Split(samples, y), below, tuple(class_names) or tuple(map(str, range(classes))), how)


def _check_samples(samples: Fields[Tensor]) -> None:
    """Raise :class:`InputError` unless there are at least two samples, the same number of every input, of types that bundles have."""
    counts = {len(x) for x in named(samples, "x").values() if x.dim()}
    for name, x in named(samples, "samples").items():
        if x.dim() < 2 or len(counts) != 1 or len(x) < 2 or x.dtype not in (torch.float32, torch.int64):
            expected = "at least two, float32 or int64 (samples, …)"
            same = ", as many of every input" if isinstance(samples, Mapping) else ""
            raise InputError(f"{name}: got {x.dtype} {tuple(x.shape)}, expected {expected}{same}")
        if not x.numel():
            raise InputError(f"{name}: got the shape {tuple(x.shape)}, which has no values")
        if not x.is_floating_point() and (least := int(x.min())) < 0:
            raise InputError(f"{name}: got the id {least}, expected ids of at least 0")


def _outputs(title: str, network: nn.Module, samples: Fields[Tensor]) -> Tensor:
    """Return what a network returns for samples; InputError unless it is a tensor with a row for each of them."""
    count = len(first(samples))
    try:
        with torch.no_grad():
            outputs = network.eval()(samples)
    except Exception as error:  # networks raise many types
        shapes = each(lambda x: tuple(x.shape), samples)
        raise InputError(f"{title} does not take samples {shapes}: {first_line(error)}") from error
    if not isinstance(outputs, Tensor) or outputs.dim() < 2 or len(outputs) != count:
        raise InputError(f"{title} returns {_shape_of(outputs)}, expected outputs ({count}, …)")
    return outputs


def _shape_of(outputs: Any) -> Any:
    return tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__


def _classes(title: str, network: nn.Module, samples: Fields[Tensor], class_names: Sequence[str]) -> int:
    """Return the number of classes; InputError if samples, outputs and names do not fit together."""
    logits = _outputs(title, network, samples)
    if logits.dim() != 2:
        raise InputError(f"{title} returns {_shape_of(logits)}, expected logits ({len(logits)}, classes)")
    classes = int(logits.shape[1])
    if class_names and len(class_names) != classes:
        raise InputError(f"class_names: got {len(class_names)} names, the network has {classes} classes")
    return classes
