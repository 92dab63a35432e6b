"""Checks a tier: its tensors are those of the manifest, and its graphs compute their stored references."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from edgefl.bundle.graph_check import End, check_ends, load_graph
from edgefl.bundle.manifest import MAX_ERROR, MAX_LOSS_ERROR, SHIFT, START, Manifest, TierEntry, TrainEntry
from edgefl.errors import BundleError, EdgeflError
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, LOSS, OUT, SEED, STEP_COUNT, state_inputs
from edgefl.onnxgrad.session import computed, opened, options_for

Arrays = dict[str, np.ndarray]


def stored_tensors(folder: Path, name: str, wanted: Mapping[str, End], optional: Mapping[str, End] | None = None) -> Arrays:
    """Return the tensors in the safetensors file ``name`` of a bundle: all of ``wanted``, and any of ``optional``.

    A free size (None) must equal the number of samples of the first of ``wanted``. BundleError if a tensor is missing, unexpected, not
    finite, or of another type or shape.
    """
    try:
        tensors: Arrays = safetensors.numpy.load((folder / name).read_bytes())
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: a type that NumPy does not have
        raise BundleError(f"{name}: not a valid safetensors file ({str(error)[:300]})") from None
    ends = {**wanted, **(optional or {})}
    if more := tensors.keys() - ends:
        raise BundleError(f"{name}: holds {_some(more)}, expected {_some(set(wanted))} and nothing else")
    if absent := wanted.keys() - tensors.keys():
        raise BundleError(f"{name}: lacks {_some(set(absent))}")
    free = any(None in end.dims for end in wanted.values())
    first = next(iter(wanted), "")
    samples = len(tensors[first]) if free and tensors[first].ndim else 0
    if free and not samples:
        raise BundleError(f"{name}: {first} {tensors[first].shape}, expected at least one sample")
    for key, tensor in tensors.items():
        dtype, shape = ends[key].dtype, tuple(samples if size is None else size for size in ends[key].dims)
        if (tensor.dtype.name, tensor.shape) != (dtype, shape):
            raise BundleError(f"{name}: {key} is {tensor.dtype} {tensor.shape}, expected {dtype} {shape}")
        if not np.isfinite(tensor).all():
            raise BundleError(f"{name}: {key} holds values that are not finite")
    return tensors


def _some(names: set[str]) -> str:
    """Return the first four names of a set, shortened and printable: they come from a file of unknown origin."""
    shown = [name if name.isprintable() else repr(name) for name in sorted(names)[:4]]
    return ", ".join(name[:100] for name in shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def allowed_error(expected: np.ndarray) -> float:
    r"""Return the largest allowed difference of outputs from the ``expected`` ones: :data:`MAX_ERROR` · max(1, max \|expected\|).

    >>> allowed_error(np.array([0.5, -0.2])), allowed_error(np.array([3.0, -2000.0]))
    (0.0001, 0.2)
    """
    return MAX_ERROR * max(1.0, float(np.abs(expected).max()))


def kept_of(values: np.ndarray) -> np.ndarray:
    """Return the values of a tensor that a reference has: every k-th one, with the smallest k that leaves 256.

    >>> kept_of(np.arange(1000).reshape(10, 100))[:3].tolist(), len(kept_of(np.zeros(())))
    ([0, 4, 8], 1)
    """
    flat = values.reshape(-1)
    return np.ascontiguousarray(flat[:: -(-flat.size // _KEPT) or 1])


T = TypeVar("T")
AFTER = "after:"
"""Prefix of tensors after the steps of a reference."""
_KEPT, _SLACK = 256, 1e-5
CONTROL = "control:"
"""Prefix of the server's control variates in a tier's ``parameters``."""
STEPS = 3
"""Number of training steps whose losses, and whose tensors, are in a reference."""


@dataclass(frozen=True)
class _Tier:
    """A tier that is being checked; ``announce`` is called with the path of each file before it is read."""

    folder: Path
    manifest: Manifest
    entry: TierEntry
    announce: Callable[[str], None]

    @property
    def samples(self) -> dict[str, End]:
        return {name: End(entry.dtype, (None, *entry.shape)) for name, entry in self.manifest.samples.items()}

    @property
    def unread(self) -> frozenset[str]:
        """Inputs that a graph need not have: a network may ignore one of several."""
        return frozenset(self.samples) if len(self.samples) > 1 else frozenset()

    @property
    def targets(self) -> dict[str, End]:
        shape = self.manifest.target_shape
        return {"y": End("int64", (None,)) if shape is None else End("float32", (None, *shape))}

    def opened(self, name: str, inputs: Mapping[str, End], outputs: Mapping[str, End], may_lack: frozenset[str]) -> _Session:
        """Return a session for the graph in the file ``name``, which is checked before onnxruntime reads it."""
        self.announce(name)
        files = {path: file.bytes for path, file in self.manifest.files.items()}
        model = load_graph(self.folder, name, self.entry.opset, files)
        check_ends(name, model.graph, inputs, outputs, may_lack)
        return _Session(self.folder, name)


def check_tier(folder: Path, manifest: Manifest, entry: TierEntry, announce: Callable[[str], None]) -> tuple[float, float | None]:
    """Check all files of a tier, and call ``announce`` with the path of each file before it is read.

    Returns:
        The largest difference of the outputs from the reference, and the largest relative difference of the losses (None: no training).

    Raises:
        BundleError: a file is not as the manifest declares it, or a graph does not compute its reference; names the file.
    """
    tier = _Tier(folder, manifest, entry, announce)
    announce(entry.reference)
    stored = stored_tensors(folder, entry.reference, {**tier.samples, "logits": End("float32", (None, manifest.classes))})
    x, expected = {name: stored[name] for name in tier.samples}, stored["logits"]
    outputs = _logits(tier, entry.forward, x)
    _finite(entry.forward, "logits", outputs)
    difference, allowed = float(np.abs(outputs - expected).max()), allowed_error(expected)
    if not difference <= allowed:
        raise BundleError(f"{entry.forward}: differs from its reference by {difference:.2e}, expected at most {allowed:.0e}")
    for variant in entry.variants:
        _finite(variant.graph, "logits", _logits(tier, variant.graph, x))
    return (difference, None if entry.train is None else _check_training(tier, entry.train, x))


def _logits(tier: _Tier, name: str, x: Arrays, weights: Arrays | None = None) -> np.ndarray:
    """Return the outputs (n, classes) of an inference graph; ``weights`` are those of its weights that are inputs, None: all are inside."""
    weights = weights or {}
    wanted = tier.samples | {key: End("float32", value.shape) for key, value in weights.items()}
    may_lack = frozenset(weights) | tier.unread
    session = tier.opened(name, wanted, {"logits": End("float32", (None, tier.manifest.classes))}, may_lack)
    outputs, count = session.run({**x, **weights})["logits"], len(next(iter(x.values())))
    if outputs.shape != (count, tier.manifest.classes):
        raise BundleError(f"{name}: outputs of shape {outputs.shape}, expected {(count, tier.manifest.classes)}")
    return outputs


def _check_training(tier: _Tier, train: TrainEntry, x: Arrays) -> float:
    """Return the largest relative difference of the stored losses from those of three steps of the first training graph.

    BundleError: it is too large, or that of a tensor after the steps.
    """
    tier.announce(train.parameters)
    declared = {name: End("float32", shape) for name, shape in train.tensors.items()}
    controls = {CONTROL + name: declared[name] for name in train.trained if train.objective.name == "scaffold"}
    tensors = stored_tensors(tier.folder, train.parameters, declared, controls)
    tier.announce(train.reference)
    first = {**tier.samples, **tier.targets, "losses": End("float32", (STEPS,))}
    learned = {name: tensors[name] for name in (*train.trained, *train.statistics)}
    after = {AFTER + name: End("float32", kept_of(value).shape) for name, value in learned.items()}
    stored = stored_tensors(tier.folder, train.reference, first, after)
    y = stored["y"]
    if tier.manifest.target_shape is None and (y.min() < 0 or y.max() >= tier.manifest.classes):
        labels = f"labels from 0 to {tier.manifest.classes - 1}"
        raise BundleError(f"{train.reference}: y from {y.min()} to {y.max()}, expected {labels}")
    start = _start(tier.manifest, train, tensors)
    weights = {value: tensors[name] for name, value in train.roles.tensors.items()}
    _finite(train.predict, "logits", _logits(tier, train.predict, x, weights))
    trained = [_train(tier, train, name, start, stored, 1 if i else STEPS) for i, name in enumerate(train.graphs)]
    losses, ended = zip(*trained, strict=True)
    expected = stored["losses"].astype(np.float64)
    errors = np.abs(np.array(losses[0]) - expected) / np.maximum(np.abs(expected), 1e-6)
    if not errors.max() <= MAX_LOSS_ERROR:
        measured, wanted = (", ".join(f"{loss:.6g}" for loss in row) for row in (losses[0], expected))
        raise BundleError(
            f"{train.graphs[0]}: losses {measured}, its reference has {wanted}, expected the same to {MAX_LOSS_ERROR:.0e}"
        )
    _check_after(train, stored, ended[0])
    return float(errors.max())


def _check_after(train: TrainEntry, stored: Arrays, ended: Arrays) -> None:
    """Raise :class:`BundleError` if a tensor after the steps is not what the reference has."""
    slack = _SLACK + (2 * STEPS * train.lr if train.optimizer == "adam" else 0)
    for name in (*train.trained, *train.statistics):
        if (expected := stored.get(AFTER + name)) is None or not expected.size:
            continue
        values, allowed = kept_of(ended[train.roles.tensors[name]]), MAX_LOSS_ERROR * float(np.abs(expected).max()) + slack
        if not (apart := float(np.abs(values - expected).max())) <= allowed:
            raise BundleError(
                f"{train.graphs[0]}: {name} after {STEPS} steps differs from its reference by {apart:.2e}, expected at most {allowed:.0e}"
            )


def _start(manifest: Manifest, train: TrainEntry, tensors: Arrays) -> Arrays:
    """Return the inputs of a training graph at its first step, except samples and labels: name of the input → value."""
    zeros = {name: np.zeros_like(tensors[name]) for name in train.trained}
    anchors = {START + name: tensors[name] for name in zeros}
    anchors |= {SHIFT + name: tensors.get(CONTROL + name, value) for name, value in zeros.items()}
    start = {value: tensors[name] for name, value in train.roles.tensors.items()}
    start |= {value: anchors[name] for name, value in train.anchors.items()}
    start |= {state: value for name, value in zeros.items() for state in state_inputs(name, train.optimizer)}
    scalars = {LEARNING_RATE: train.lr, **({} if train.optimizer == "sgd" else {BETA: train.momentum})}
    scalars |= {SEED: 0.0, **({STEP_COUNT: 0.0} if train.optimizer == "adam" else {})}
    start |= {name: np.array(value, np.float32) for name, value in scalars.items()}
    return start | ({"present": np.ones(manifest.classes, np.bool_)} if train.present else {})


def _train(
    tier: _Tier, train: TrainEntry, name: str, start: Arrays, stored: Arrays, steps: int
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses of so many ``steps`` on the ``stored`` batch from the inputs ``start``, and the inputs of the next step."""
    inputs = {key: End(value.dtype.name, value.shape) for key, value in start.items()}
    inputs |= {**tier.samples, **tier.targets}
    roles = train.roles
    states = {state for name in train.trained for state in state_inputs(name, train.optimizer)}
    updated = {*roles.trained.values(), *roles.statistics.values(), *states, *(start.keys() & {SEED, STEP_COUNT})}
    statistics = roles.statistics.values()
    may_lack = {
        SEED,
        SEED + OUT,
        *statistics,
        *(name + OUT for name in statistics),
        *roles.frozen.values(),
        *train.anchors.values(),
        *tier.unread,
    }
    session = tier.opened(
        name, inputs, {LOSS: End("float32", ()), **{key + OUT: inputs[key] for key in updated}}, frozenset(may_lack)
    )
    if forgotten := sorted(key for key in updated & session.inputs if key + OUT not in session.outputs):
        raise BundleError(f"{name}: has no output {forgotten[0]}.out, though it has the input")
    batch = {key: stored[key] for key in (*tier.samples, "y")}
    single_sample = {**start, **{key: value[:1] for key, value in batch.items()}}
    for key, value in session.run(single_sample).items():
        _finite(name, f"{key} after one sample", value)
    values, losses = {**start, **batch}, []
    for _ in range(steps):
        for key, value in session.run(values).items():
            _finite(name, key, value)
            values[key.removesuffix(OUT)] = value
        losses.append(float(values[LOSS]))
    return losses, values


def _finite(name: str, key: str, value: np.ndarray) -> None:
    if not (finite := np.isfinite(value)).all():
        raise BundleError(
            f"{name}: {key} holds values that are not finite, such as {value[~finite].flat[0]}: its weights are spoiled"
        )


class _Session:
    """A graph in onnxruntime, on one thread. Its errors name the file, and a run ignores values that are not inputs of the graph."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.session = self._named(lambda: opened(folder / name, options_for(1)))
        self.inputs = {value.name for value in self.session.get_inputs()}
        self.outputs = {value.name for value in self.session.get_outputs()}

    def run(self, values: Arrays) -> Arrays:
        return self._named(lambda: computed(self.session, {key: values[key] for key in self.inputs}))

    def _named(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except EdgeflError as error:
            raise BundleError(f"{self.name}: {error}") from error.__cause__
