"""The work of networks by kind: stored in work.json, or traced where timm is installed."""

from __future__ import annotations

import difflib
import enum
import functools
import importlib
import importlib.machinery
import importlib.util
import json
import sys
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from clock.rows import FOLDER
from edgefl.cost.table import cost_of
from edgefl.cost.trace import Subject
from edgefl.records import Batch
from edgefl.records.work import KINDS, PARTS, StepWork, Work

STORED = FOLDER / "work.json"
BATCH = 16
SIZE, CLASSES = 224, 1000
OVER_8_GB = ("vgg11", "vgg16", "maxvit_small_tf_224", "maxvit_base_tf_224", "maxvit_large_tf_224")
"""Networks that the source of the measured steps left out, because a step needs more than 8 GB."""


@dataclass(frozen=True)
class Network:
    """What edgefl counts for a network: its work, its parameters, and the peak memory in bytes of a step of 16 samples."""

    work: StepWork
    params: int
    peak_bytes: int


@functools.cache
def stored(path: Path = STORED) -> dict[str, Network]:
    """Return name in timm → network from a file; the program ends with a message if the package does not know its kinds of work."""
    found = json.loads(path.read_text(encoding="utf-8"))
    unknown = [kind for kind in found["kinds"] if kind not in KINDS]
    if unknown or found["parts"] != list(PARTS):
        sys.exit(f"{path}: its kinds of work are not the package's; --trace counts the networks again")

    def work(parts: Sequence[Sequence[int]]) -> StepWork:
        return StepWork(*(Work(**dict(zip(found["kinds"], counts, strict=True))) for counts in parts))

    return {name: Network(work(entry["work"]), entry["params"], entry["peak_bytes"]) for name, entry in found["networks"].items()}


def counted_kinds(path: Path = STORED) -> tuple[str, ...]:
    """Return the kinds of work that a file has counts of."""
    return tuple(json.loads(path.read_text(encoding="utf-8"))["kinds"])


def network_of(name: str) -> Network:
    """Return a network by its name in timm: the stored one, or else traced on the spot."""
    if name in stored():
        return stored()[name]
    if importlib.util.find_spec("timm") is None:
        near = difflib.get_close_matches(name, stored(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        sys.exit(f"unknown network {name!r}{hint} pip install timm: other networks are traced")
    return traced(name)


def write(names: Iterable[str], path: Path = STORED) -> None:
    """Trace networks and store them, a line for each part of the work."""
    networks = {}
    for name in names:
        networks[name] = traced(name)
        print(f"{name}: {networks[name].params:,} parameters", file=sys.stderr)
    entries = []
    for name, network in networks.items():
        work = ",\n   ".join(json.dumps(getattr(network.work, part).counts) for part in PARTS)
        head = f'"params": {network.params}, "peak_bytes": {network.peak_bytes}'
        entries.append(f'  "{name}": {{{head}, "work": [\n   {work}]}}')
    kinds, parts = json.dumps(KINDS), json.dumps(PARTS)
    body = ",\n".join(entries)
    path.write_text(f'{{\n "kinds": {kinds},\n "parts": {parts},\n "networks": {{\n{body}\n }}\n}}\n', encoding="utf-8")
    stored.cache_clear()


def traced(name: str) -> Network:
    """Return a network of timm as edgefl counts it: images of 3×224×224, 1,000 classes, SGD."""
    timm = timm_module()

    def build() -> nn.Module:
        with unset_fake_temporarily():
            network: nn.Module = timm.create_model(_variant(name), num_classes=CLASSES)
        return network

    subject = Subject(
        build,
        lambda n: Batch(torch.empty(n, 3, SIZE, SIZE), torch.zeros(n, dtype=torch.long), torch.ones(CLASSES, dtype=torch.bool)),
        lambda network, batch: nn.functional.cross_entropy(network(batch.x), batch.y),
        lambda network: torch.optim.SGD(network.parameters(), lr=0.1),
    )
    cost = cost_of(subject, BATCH, (0, 0))
    if cost.uncounted_ops:
        sys.exit(f"{name}: operations without a rule: {', '.join(cost.uncounted_ops)}")
    return Network(cost.work, cost.params, cost.training_memory_bytes)


def _variant(name: str) -> str:
    """Return the name of a network that takes images of 224×224, where the source's name has none."""
    return {"maxvit_tiny": "maxvit_tiny_tf_224"}.get(name, name)


@functools.cache
def timm_module() -> types.ModuleType:
    """Return timm, without fused attention; a stand-in replaces torchvision where it is not installed."""
    if importlib.util.find_spec("torchvision") is None:
        stand_in()
    timm = importlib.import_module("timm")
    timm.layers.set_fused_attn(False)  # PyTorch 1.13, which was measured, has no fused attention
    return timm


class _Modes(enum.Enum):
    NEAREST, BILINEAR, BICUBIC, BOX, HAMMING, LANCZOS, NEAREST_EXACT = range(7)


class _Empty(types.ModuleType):
    """A module in which every name exists: classes of layers, and modules."""

    __path__: list[str]
    InterpolationMode: type[enum.Enum]

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (nn.Module,), {}) if name[0].isupper() else _empty(f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found


def _empty(name: str) -> _Empty:
    module = _Empty(name)
    module.__path__ = []
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = module
    return module


def stand_in() -> None:
    """Stand in for torchvision, which timm imports for images and detection; its classifiers do without."""
    _empty("torchvision")
    for name in (
        "ops",
        "ops.misc",
        "models",
        "models.feature_extraction",
        "transforms",
        "transforms.functional",
        "datasets",
        "utils",
    ):
        module = _empty(f"torchvision.{name}")
        if name.startswith("transforms"):
            module.InterpolationMode = _Modes
        parent = sys.modules[f"torchvision.{name}".rpartition(".")[0]]
        setattr(parent, name.rpartition(".")[2], module)
