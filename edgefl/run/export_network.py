"""The bundle of a network that was trained elsewhere: graphs that infer and train, without a run behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edgefl import __version__
from edgefl.errors import InputError
from edgefl.rng import generator

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgefl.bundle.manifest import TrainEntry
    from edgefl.bundle.tier_graphs import TierGraphs

_LABEL = "1"
_ALONE = "the network was exported without a run, so no server aggregates its updates"


def export_network(
    module: nn.Module,
    samples: Tensor | Mapping[str, Tensor],
    out: Path | str,
    *,
    optimizer: Literal["momentum", "sgd", "adam"] = "momentum",
    lr: float = 0.05,
    momentum: float = 0.9,
    batch_size: int = 16,
    epochs: int = 1,
    class_names: Sequence[str] = (),
    preprocessing: Mapping[str, Any] | None = None,
    client: bool = False,
) -> Path:
    """Write a bundle of one tier for a network with its present weights, trained by cross-entropy, and return its folder.

    Args:
        module: (samples, …) → logits (samples, classes), also as the entry ``logits`` of a dictionary; its parameters with
            ``requires_grad`` are trained.
        samples: at least two samples (n, …): float32, or int64 ids, whose largest is the largest id. Several inputs of one shape and type,
            name → (n, …), become one input (n, inputs, …) of the bundle.
        out: must not exist, or be empty.
        optimizer: ``momentum``, ``sgd`` or ``adam``, with ``momentum`` as its β₁.
        lr: learning rate with which a device trains unless it is told otherwise.
        momentum: its momentum.
        batch_size: its samples per step.
        epochs: its passes over its samples.
        class_names: a name for each class; none: the numbers.
        preprocessing: how devices prepare samples, as ``export/README.md`` specifies; None: they are used as they are.
        client: whether the Python and browser clients are put beside the graphs.

    Raises:
        InputError: ``samples``, the output or ``class_names`` do not fit together, or an operator has no gradient rule.
        EdgeflError: the network cannot be exported, or its training graph differs from torch.
        BundleError: ``out`` exists and is not empty.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Mish(), nn.Linear(8, 3))
        >>> folder = export_network(network, torch.randn(2, 4), tempfile.mkdtemp())
        >>> sorted(path.name for path in (folder / "1").glob("*.onnx"))
        ['forward.onnx', 'predict.onnx', 'train.onnx']
    """
    import copy

    import onnx
    import torch

    from edgefl.bundle.manifest import Manifest, TierEntry
    from edgefl.bundle.tier_graphs import with_weights
    from edgefl.bundle.write import build_tier, client_files, write
    from edgefl.onnxgrad.macs import count_macs
    from edgefl.run.one_input import ids_below, with_one_input

    network = copy.deepcopy(module)
    names, samples = (() if isinstance(samples, torch.Tensor) else tuple(samples)), with_one_input(network, samples)
    classes = _classes(network, samples, class_names)
    below, ids = ids_below(samples, bool(names)), not samples.is_floating_point()
    graphs = _graphs(network, samples, classes, optimizer)
    network.eval()
    rng = generator(0, "reference", _LABEL)
    files = build_tier(network, tuple(samples.shape[1:]), _LABEL, rng, below, with_weights(graphs, network))
    how = {"optimizer": optimizer, "lr": lr, "batch_size": batch_size, "epochs": epochs}
    how["momentum"] = 0.0 if optimizer == "sgd" else momentum
    train, contents = _trainable(network, graphs, samples, below, classes, how)
    counted = count_macs(onnx.load_model_from_string(graphs.predict), 1)
    entry = TierEntry(
        tier=1,
        label=_LABEL,
        device=None,
        train=train,
        opset=files.opset,
        forward=f"{_LABEL}/forward.onnx",
        reference=f"{_LABEL}/reference.safetensors",
        params=sum(parameter.numel() for parameter in network.parameters()),
        batch_size=batch_size,
        costs={"macs_forward": counted.total},
        uncounted_ops=counted.uncounted_ops,
        accuracy_onnx=None,
        accuracy_torch=None,
        parity_max_abs_error=files.parity_max_abs_error,
    )
    manifest = Manifest(
        edgefl_version=__version__,
        method="none",
        model=type(module).__name__,
        dataset="none",
        input_shape=tuple(samples.shape[1:]),
        input_dtype="int64" if ids else "float32",
        classes=classes,
        class_names=tuple(class_names) or tuple(map(str, range(classes))),
        preprocessing=dict(preprocessing)
        if preprocessing is not None
        else ({"inputs": list(names)} if names else {})
        if ids or names
        else {"scale": 1.0, "mean": 0.0, "std": 1.0},
        tiers=(entry,),
        files={},
    )
    write(Path(out), manifest, {**files.contents, **contents, **(client_files() if client else {})})
    return Path(out)


def network_and_samples(
    network: str, inputs: Sequence[str], weights: Path | None
) -> tuple[nn.Module, Tensor | dict[str, Tensor]]:
    """Return a network, as ``edgefl profile`` accepts it, with the weights of a safetensors file, and two drawn samples for it.

    InputError or WireError if there is no such network, or the weights do not fit it; the first five tensors that differ are named.
    """
    from edgefl.models.valueless import reason
    from edgefl.models.weights import checked_weights, tied
    from edgefl.planning.network import architecture_of
    from edgefl.run.one_input import examples_for

    architecture = architecture_of(network, inputs)
    module = architecture.build()
    if weights is not None:
        own = {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
        found = checked_weights(weights, {name: tuple(tensor.shape) for name, tensor in own.items()}, tied=tied(module))
        module.load_state_dict(dict(found), strict=False)
    try:
        return module, examples_for(module, architecture.samples(2))
    except Exception as error:  # networks raise many types
        raise InputError(f"{network} does not take samples {architecture}: {reason(error)}") from error


def _classes(network: nn.Module, samples: Tensor, class_names: Sequence[str]) -> int:
    """Return the number of classes; InputError if samples, outputs and names do not fit together."""
    import torch

    from edgefl.errors import first_line

    if samples.dim() < 2 or len(samples) < 2 or samples.dtype not in (torch.float32, torch.int64):
        raise InputError(
            f"samples: got {samples.dtype} {tuple(samples.shape)}, expected at least two, float32 or int64 (samples, …)"
        )
    try:
        with torch.no_grad():
            logits = network.eval()(samples)
    except Exception as error:  # networks raise many types
        raise InputError(f"{type(network).__name__} does not take samples {tuple(samples.shape)}: {first_line(error)}") from error
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != len(samples):
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(f"{type(network).__name__} returns {found}, expected logits ({len(samples)}, classes)")
    classes = int(logits.shape[1])
    if class_names and len(class_names) != classes:
        raise InputError(f"class_names: got {len(class_names)} names, the network has {classes} classes")
    return classes


def _graphs(network: nn.Module, samples: Tensor, classes: int, optimizer: Any) -> TierGraphs:
    """Return the graphs of a network, compared with torch."""
    import torch
    import torch.nn.functional as F

    from edgefl.bundle.tier_graphs import TierGraphs
    from edgefl.onnxgrad.loss import loss_graph
    from edgefl.onnxgrad.roles import PREDICTION
    from edgefl.onnxgrad.step import training_graphs
    from edgefl.onnxgrad.step_check import check_step
    from edgefl.onnxgrad.step_rule import StepRule
    from edgefl.onnxgrad.stepper import StepGraphs

    def loss(own: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(own(x), y)

    rule, batch = StepRule(optimizer), {"x": samples, "y": torch.arange(len(samples)) % classes}
    graph = loss_graph(network, [loss], batch)
    steps = StepGraphs(training_graphs(graph, rule), graph.roles)
    check_step(steps, network, [loss], batch, {}, rule)
    return TierGraphs(steps, graph.part([PREDICTION], "predict").SerializeToString(deterministic=True))


def _trainable(
    network: nn.Module, graphs: TierGraphs, samples: Tensor, below: Any, classes: int, how: Mapping[str, Any]
) -> tuple[TrainEntry, dict[str, bytes]]:
    """Return the training part of the tier: its entry in the manifest, and path → content of the files that the entry names."""
    import safetensors.numpy

    from edgefl.bundle.manifest import TrainEntry
    from edgefl.bundle.tier_check import STEPS
    from edgefl.bundle.write import drawn
    from edgefl.models.base import named_tensors
    from edgefl.onnxgrad.stepper import Stepper

    tensors, roles = named_tensors(network), graphs.steps.roles
    arrays = {name: tensors[name].detach().float().contiguous().numpy() for name in roles.tensors}
    stepper = Stepper(graphs.steps, {role: arrays[name] for name, role in roles.tensors.items()}, how["lr"], how["momentum"])
    rng = generator(0, "training reference", _LABEL)
    x = drawn(rng, (8, *samples.shape[1:]), below)  # a bundle contains no user's data
    y = np.arange(len(x)) % classes
    losses = np.array([stepper.step(x, y) for _ in range(STEPS)], np.float32)
    paths = {key: f"{_LABEL}/{name}" for key, name in (
        ("predict", "predict.onnx"), ("parameters", "parameters.safetensors"), ("reference", "train_reference.safetensors")
    )}  # fmt: skip
    kinds = {"trained": roles.trained, "statistics": roles.statistics, "frozen": roles.frozen}
    entry = TrainEntry(
        graphs=(f"{_LABEL}/train.onnx",),
        **paths,
        **how,
        **{kind: {name: arrays[name].shape for name in names} for kind, names in kinds.items()},
        upload={},
        no_update=_ALONE,
    )
    return entry, {
        entry.graphs[0]: graphs.steps.steps[0],
        entry.predict: graphs.predict,
        entry.parameters: safetensors.numpy.save(arrays),
        entry.reference: safetensors.numpy.save({"x": x, "y": y, "losses": losses}),
    }
