"""The bundle of a network that was trained elsewhere, as it is or cut by a method: graphs that infer and train, without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from edgefl.bundle.manifest import TierEntry
from edgefl.bundle.operators import operator_file
from edgefl.bundle.other_formats import check_formats
from edgefl.bundle.tier_graphs import rule_of, tier_graphs
from edgefl.bundle.tier_part import TierPart, Trainee, Trains, manifest_of, tier_part
from edgefl.bundle.write import about_inputs, client_files, drawn, write
from edgefl.client.parts import first_personal
from edgefl.client.training import Training
from edgefl.config import RunConfig
from edgefl.errors import BundleError, ConfigError, InputError, first_line
from edgefl.methods.capabilities import advanced, factored
from edgefl.methods.personal import trained_network
from edgefl.methods.state import GlobalState
from edgefl.models.base import named_tensors
from edgefl.models.copies import copies_of
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.models.ties import tied
from edgefl.models.valueless import reason
from edgefl.models.weights import checked_weights
from edgefl.onnxgrad.macs import count_macs
from edgefl.planning.network import architecture_of, embeddings
from edgefl.planning.profile import check_together, method_and_tiers
from edgefl.records import Tier
from edgefl.rng import generator, torch_seeded
from edgefl.run.checks import check_preparation
from edgefl.run.network import check_finite
from edgefl.run.prepare import begun
from edgefl.timing.spans import span
from edgefl.util.compute import one_thread
from edgefl.util.fields import Fields, each, first, named
from edgefl.util.files import check_free
from edgefl.util.keys import Chosen, SigningKey

_SEED = 0
_ALONE = (
    "the network was exported without a run, so no server aggregates its updates; for that, begin a run with its weights, and give devices "
    "that run's bundle: edgefl simulate --model NETWORK --weights FILE --data DATA --preprocessing none"
)


@one_thread()
def export_network(
    module: nn.Module,
    samples: Fields[Tensor],
    out: Path | str,
    *,
    method: str | None = None,
    tiers: Sequence[float] | None = None,
    method_options: Mapping[str, Any] | None = None,
    optimizer: Literal["momentum", "sgd", "adam"] = "momentum",
    lr: float = 0.05,
    momentum: float = 0.9,
    batch_size: int = 16,
    epochs: int = 1,
    class_names: Sequence[str] = (),
    preprocessing: Mapping[str, Any] | None = None,
    client: bool = False,
    also: Sequence[str] = (),
    operators: bool = False,
    sign: Chosen = None,
) -> Path:
    """Write a bundle for a network with its present weights, trained by cross-entropy, and return its folder.

    Without a method, its only tier is the network as it is. A method cuts or factorizes it for each tier, and adds its own terms to the
    loss. Tensors that the network lacks, such as those of early exits, are drawn at random. A warm-up of the method counts as over.

    Args:
        module: (samples, …) → logits (samples, classes), also as the entry ``logits`` of a dictionary; its parameters with
            ``requires_grad`` are trained.
        samples: at least two samples (n, …): float32, or int64 ids. Their smallest and largest at each position are taken as those of all
            samples. Several inputs: name of the argument of ``forward`` → such samples.
        out: must not exist, or be empty.
        method: a method whose server begins with a dense network, such as ``fedhm``, ``heterofl`` or ``depthfl``; None: no method.
        tiers: a ratio in (0, 1] for each tier, largest first; None: the method's own.
        method_options: options of the method.
        optimizer: ``momentum``, ``sgd`` or ``adam``, with ``momentum`` as its β₁.
        lr: learning rate with which a device trains unless it is told otherwise.
        momentum: its momentum.
        batch_size: its samples per step.
        epochs: its passes over its samples.
        class_names: a name for each class; none: the numbers.
        preprocessing: how devices prepare samples, as ``export/README.md`` specifies, of several inputs by name; None: they are used as
            they are.
        client: whether the Python, TypeScript and browser clients are put beside the graphs.
        also: export formats for other runtimes, ``executorch`` and ``litert``, for inference of one sample.
        operators: whether ``required_operators.config`` is written too, for a reduced build of onnxruntime.
        sign: PEM file of an Ed25519 private key to sign the bundle with; None: the user's own key, which is made at its first use; False:
            the bundle is not signed, and devices refuse it unless told otherwise.

    Raises:
        ConfigError: a setting of training is out of range.
        InputError: ``samples``, the output or ``class_names`` do not fit together; an operator has no gradient rule; a name or option is
            unknown; or the method cannot begin with the network's weights.
        EdgeflError: the network cannot be exported, or its training graph differs from torch.
        BundleError: ``out`` exists and is not empty.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Mish(), nn.Linear(8, 3))
        >>> folder = export_network(network, torch.randn(2, 4), tempfile.mkdtemp(), method="heterofl", tiers=(1, 0.5))
        >>> sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.onnx"))[:4]
        ['0.5/forward.onnx', '0.5/predict.onnx', '0.5/train.onnx', '1/forward.onnx']
    """
    check_free(Path(out), BundleError)
    chosen, ratios = method_and_tiers(method, method_options, tiers)
    _check_settings(optimizer=optimizer, lr=lr, momentum=momentum, batch_size=batch_size, local_epochs=epochs)
    check_formats(also)
    key = SigningKey.chosen(sign)
    network = copies_of(module)()
    title = type(network).__name__
    if empty := [name for name, tensor in named_tensors(network).items() if not tensor.numel()]:
        raise InputError(f"{title}: {empty[0]} has no values, and no place in a bundle; remove it from the network")
    _check_samples(samples)
    check_preparation("", preprocessing or {}, samples)
    inputs = each(_spec, samples)
    by_name = {"": inputs} if isinstance(inputs, InputSpec) else inputs
    architecture = _Given(title, factory=copies_of(network), inputs=by_name, logits=True, examples=samples)
    whole = architecture.build()
    classes = _classes(title, whole, samples, class_names)
    architecture = replace(architecture, classes=classes)
    sizes = tuple(map(Tier, ratios))
    check_together(chosen, architecture, sizes)
    check_finite(network, title)
    state = begun(chosen, architecture, sizes, _floats(whole), _SEED)
    # The network is trained: warm-ups are over, and ranks may follow its spectra.
    round_ = 2 + getattr(chosen.config, "warmup_rounds", 0)
    chosen, state = advanced(chosen, state, round_, generator(_SEED, round_, "advance"))
    training = Training(epochs, batch_size, lr, momentum, 0.0, optimizer, clip_gradient=chosen.clip_gradient)
    trains = Trains(chosen, architecture, training, 0.0 if optimizer == "sgd" else momentum, alone=_ALONE)
    written = []
    for number, tier in enumerate(sizes, 1):
        with span("bundle", tier=tier.label, number=number, of=len(sizes)):
            written.append(_tier(trains, state, tier, inputs, also))
    plain = each(lambda spec: {} if spec.below else {"scale": 1.0, "mean": 0.0, "std": 1.0}, inputs)
    manifest, contents = manifest_of(
        written,
        method=method or "none",
        model=title,
        dataset="none",
        **about_inputs(inputs, plain if preprocessing is None else preprocessing),
        classes=classes,
        class_names=tuple(class_names) or tuple(map(str, range(classes))),
    )
    contents |= (client_files() if client else {}) | (operator_file(contents) if operators else {})
    write(Path(out), manifest, contents, key)
    return Path(out)


@dataclass(frozen=True)
class _Given(CustomArchitecture):
    """A network with samples. Their ids are valid, unlike zeros where one is a mask."""

    examples: Fields[Tensor] = field(default_factory=lambda: torch.empty(0), compare=False)

    def samples(self, count: int) -> Any:
        """Return ``count`` samples (count, …), the given ones repeated, on torch's current device."""
        device = torch.get_default_device()
        return each(lambda x: x.to(device)[torch.arange(count) % len(x)], self.examples)


def _floats(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}


def _tier(
    trains: Trains, state: GlobalState, tier: Tier, inputs: Fields[InputSpec], also: Sequence[str]
) -> tuple[TierEntry, TierPart]:
    """Return a tier's entry in the manifest, and its files."""
    method, architecture, training, label = trains.method, trains.architecture, trains.training, tier.label
    graphs = tier_graphs(method, architecture, tier, rule_of(training), trains.objective)
    personal = first_personal(method, architecture, tier, _SEED)
    network, deployed = trained_network(method, state, tier, personal), factored(method, state, tier, personal)
    # A bundle contains no user's data.
    x, y = drawn(generator(_SEED, "training reference", label), training.batch_size, inputs), np.arange(training.batch_size)
    trainee = Trainee(tier, network, graphs, (x, y % architecture.classes))
    part = tier_part(trains, trainee, deployed, inputs, generator(_SEED, "reference", label), also)
    counted = count_macs(onnx.load_model_from_string(graphs.predict), 1)
    entry = part.entry(
        device=None,
        params=sum(parameter.numel() for parameter in deployed.parameters()),
        batch_size=training.batch_size,
        costs={"macs_forward": counted.total},
        uncounted_ops=counted.uncounted_ops,
        accuracy_onnx=None,
        accuracy_torch=None,
    )
    return entry, part


def network_and_samples(
    network: str, inputs: Sequence[str], weights: Path | None, classes: int | None = None
) -> tuple[nn.Module, Tensor | dict[str, Tensor]]:
    """Return a network of ``classes``, as ``edgefl profile`` accepts it, with weights of a safetensors file, and two drawn samples.

    InputError or WireError if there is no such network, or the weights do not fit it; the first five tensors that differ are named.
    """
    architecture = architecture_of(network, inputs, classes)
    module = architecture.build()
    if weights is not None:
        own = _floats(module)
        found = checked_weights(weights, {name: tuple(tensor.shape) for name, tensor in own.items()}, tied=tied(module))
        module.load_state_dict(dict(found), strict=False)
    try:
        return module, _examples_for(module, architecture.samples(2))
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
        if known is None and like.dim() > 1:
            found[..., 0] = 1  # no sample is empty
        return found

    with torch_seeded(generator(_SEED, "samples")):
        return each(
            example, samples, {name: rows.get(name) for name in samples} if isinstance(samples, Mapping) else rows.get("")
        )


def _check_settings(**settings: Any) -> None:
    """Raise :class:`ConfigError` for settings of training that a run would not have either."""
    try:
        RunConfig(**settings)
    except ConfigError as error:
        raise ConfigError(str(error).replace("local_epochs", "epochs")) from None


def _spec(x: Tensor) -> InputSpec:
    """Return the description of samples ``x``: of ids, with those at each position."""
    if x.is_floating_point():
        return InputSpec(tuple(x.shape[1:]), x.dtype)
    return InputSpec(tuple(x.shape[1:]), x.dtype, int(x.max()) + 1, (x.numpy().min(axis=0), x.numpy().max(axis=0)))


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


def _classes(title: str, network: nn.Module, samples: Fields[Tensor], class_names: Sequence[str]) -> int:
    """Return the number of classes; InputError if samples, outputs and names do not fit together."""
    count = len(first(samples))
    try:
        with torch.no_grad():
            logits = network.eval()(samples)
    except Exception as error:  # networks raise many types
        shapes = each(lambda x: tuple(x.shape), samples)
        raise InputError(f"{title} does not take samples {shapes}: {first_line(error)}") from error
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != count:
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(f"{title} returns {found}, expected logits ({count}, classes)")
    classes = int(logits.shape[1])
    if class_names and len(class_names) != classes:
        raise InputError(f"class_names: got {len(class_names)} names, the network has {classes} classes")
    return classes
