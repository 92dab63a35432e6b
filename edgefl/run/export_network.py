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
    samples: Tensor,
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
        module: (samples, …) → logits (samples, classes); its parameters with ``requires_grad`` are trained.
        samples: at least two samples (n, …): float32, or int64 ids, whose largest is the largest id.
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

    from edgefl.bundle.manifest import Manifest, TierEntry
    from edgefl.bundle.tier_graphs import with_weights
    from edgefl.bundle.write import build_tier, client_files, write
    from edgefl.onnxgrad.macs import count_macs

    network = copy.deepcopy(module)
    classes = _classes(network, samples, class_names)
    ids = not samples.is_floating_point()
    graphs = _graphs(network, samples, classes, optimizer)
    network.eval()
    rng = generator(0, "reference", _LABEL)
    files = build_tier(
        network, tuple(samples.shape[1:]), _LABEL, rng, int(samples.max()) + 1 if ids else 0, with_weights(graphs, network)
    )
    how = {"optimizer": optimizer, "lr": lr, "batch_size": batch_size, "epochs": epochs}
    how["momentum"] = 0.0 if optimizer == "sgd" else momentum
    train, contents = _trainable(network, graphs, samples, classes, how)
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
        else {}
        if ids
        else {"scale": 1.0, "mean": 0.0, "std": 1.0},
        tiers=(entry,),
        files={},
    )
    write(Path(out), manifest, {**files.contents, **contents, **(client_files() if client else {})})
    return Path(out)


def network_and_samples(network: str, inputs: str | None, weights: Path | None) -> tuple[nn.Module, Tensor]:
    """Return a network, as ``edgefl profile`` accepts it, with the weights of a safetensors file, and two drawn samples for it.

    InputError or WireError if there is no such network, or the weights do not fit it; the first five tensors that differ are named.
    """
    import torch

    from edgefl.models.weights import checked_weights
    from edgefl.planning.network import architecture_of

    architecture = architecture_of(network, inputs)
    module, samples = architecture.build(), architecture.samples(2)
    if not isinstance(samples, torch.Tensor):
        raise InputError(f"{network} takes several inputs; a bundle has one, x")
    if weights is not None:
        own = {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
        found = checked_weights(weights, {name: tuple(tensor.shape) for name, tensor in own.items()})
        module.load_state_dict(dict(found), strict=False)
    return module, torch.randn(samples.shape) if samples.is_floating_point() else samples


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
    network: nn.Module, graphs: TierGraphs, samples: Tensor, classes: int, how: Mapping[str, Any]
) -> tuple[TrainEntry, dict[str, bytes]]:
    """Return the training part of the tier: its entry in the manifest, and path → content of the files that the entry names."""
    import safetensors.numpy

    from edgefl.bundle.manifest import TrainEntry
    from edgefl.bundle.tier_check import STEPS
    from edgefl.models.base import named_tensors
    from edgefl.onnxgrad.stepper import Stepper

    tensors, roles = named_tensors(network), graphs.steps.roles
    arrays = {name: tensors[name].detach().float().contiguous().numpy() for name in roles.tensors}
    stepper = Stepper(graphs.steps, {role: arrays[name] for name, role in roles.tensors.items()}, how["lr"], how["momentum"])
    rng = generator(0, "training reference", _LABEL)
    shape = (8, *samples.shape[1:])  # drawn: a bundle contains no user's data
    floats = samples.is_floating_point()
    drawn = rng.standard_normal(shape).astype(np.float32) if floats else rng.integers(int(samples.max()) + 1, size=shape)
    y = np.arange(len(drawn)) % classes
    losses = np.array([stepper.step(drawn, y) for _ in range(STEPS)], np.float32)
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
        entry.reference: safetensors.numpy.save({"x": np.ascontiguousarray(drawn), "y": y, "losses": losses}),
    }
