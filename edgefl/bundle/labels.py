"""The labels of an ONNX file, for whoever opens it in a viewer: a sentence, its producer, and where its network is from."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.helper
from safetensors import SafetensorError, safe_open

from edgefl.bundle.manifest import TierEntry
from edgefl.bundle.tier_part import TierPart
from edgefl.models.base import Architecture
from edgefl.version import __version__

_LICENCES = ("model_license", "license", "licence")
"""The key of a licence in an ONNX file, and those in use in safetensors files."""


def labelled(entry: TierEntry, part: TierPart, source: Mapping[str, str], state: Mapping[str, str]) -> tuple[TierEntry, TierPart]:
    """Return a tier's entry and part with labels in all ONNX files: what is in a graph does not change.

    ``source`` is the same in every round: ``network``, ``method``, ``dataset`` and the licence. ``state`` is about the weights in a file.
    """
    contents = dict(part.contents)
    for path in (path for path in contents if path.endswith(".onnx")):
        weights = Path(path).name.startswith("forward")
        about = {"tier": entry.label, **source, **(state if weights else {})}
        contents[path] += _label(Path(path).name, about).SerializeToString(deterministic=True)  # protobuf merges what follows
    variants = tuple(v.model_copy(update={"bytes": len(contents[v.graph])}) for v in entry.variants)
    return entry.model_copy(update={"variants": variants}), replace(part, contents=contents)


def _label(name: str, about: Mapping[str, str]) -> onnx.ModelProto:
    """Return a model of labels only, for the file ``name``."""
    step = name.startswith("train")
    kind = "A training step" if step else "Inference"
    weights = f"with its weights after round {about['round']}" if "round" in about else "with its weights as inputs"
    text = f"{kind} of {about['network']}, tier {about['tier']} of the method {about['method']} on {about['dataset']}, {weights}."
    label = onnx.ModelProto(producer_name="edgefl", producer_version=__version__, doc_string=text)
    onnx.helper.set_model_props(label, dict(about))
    return label


def licence_of(architecture: Architecture) -> dict[str, str]:
    """Return the licence that the file of the network, or of its first weights, states, as an entry of a label; {} if there is none."""
    metadata: Mapping[str, str] = {}
    with contextlib.suppress(OSError, SafetensorError):  # a state_dict of torch has no place for it
        if architecture.weights is not None:
            with safe_open(architecture.weights.path, framework="np") as file:
                metadata = file.metadata() or {}
    with contextlib.suppress(OSError):
        spec = getattr(architecture, "spec", "")
        if not metadata and spec.endswith(".onnx"):
            metadata = {entry.key: entry.value for entry in onnx.load(spec, load_external_data=False).metadata_props}
    licence = next((metadata[key] for key in _LICENCES if key in metadata), "")
    return {_LICENCES[0]: licence} if licence else {}
