"""The models in the onnx wheel: edgefl reads and profiles their files, and their stored results tell whether it is right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import edgefl
from edgefl.onnxgrad.to_torch import load_onnx
from judges.reading import read
from judges.verdict import EQUAL, Case, Judge, Skip, Verdict, reference

DATA = Path(onnx.__file__).parent / "backend/test/data"
FOLDERS = ("pytorch-converted", "pytorch-operator", "simple", "light")


def subjects() -> list[str]:
    """Return the models as FOLDER/NAME."""
    found = [f"{kind}/{path.name}" for kind in FOLDERS[:3] for path in sorted((DATA / kind).iterdir())]
    return [*found, *(f"light/{path.stem}" for path in sorted((DATA / "light").glob("*.onnx")))]


def cases(subject: str) -> Iterator[Case]:
    """Return the two cases of a model: its results, and its costs."""
    yield Case("results", partial(_results, subject))
    yield Case("profile", partial(_profile, subject))


def _path(subject: str) -> Path:
    return DATA / f"{subject}.onnx" if subject.startswith("light/") else DATA / subject / "model.onnx"


def _tensor(path: Path) -> np.ndarray:
    stored = onnx.TensorProto()
    stored.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(stored)


def _values(subject: str, kind: str) -> list[np.ndarray]:
    """Return the stored inputs or outputs. Only the output of a light model is stored: its input is a ramp from 0 to 1."""
    with reference("onnx"):
        path = _path(subject)
        if not subject.startswith("light/"):
            files = (path.parent / "test_data_set_0").glob(f"{kind}_*.pb")
            return [_tensor(file) for file in sorted(files, key=lambda file: int(re.findall(r"\d+", file.stem)[-1]))]
        if kind == "output":
            return [_tensor(path.with_name(f"{path.stem}_output_0.pb"))]
        shape = _shape(onnx.load(path))
        count = int(np.prod(shape))
        return [(np.arange(count, dtype=np.float32) / count).reshape(shape)]


def _shape(model: onnx.ModelProto) -> tuple[int, ...]:
    stored = {tensor.name for tensor in model.graph.initializer}
    value = next(value for value in model.graph.input if value.name not in stored)
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _results(subject: str) -> Verdict:
    inputs, outputs = _values(subject, "input"), _values(subject, "output")
    return read(load_onnx(_path(subject)), inputs, outputs, 1e-3)


def _profile(subject: str) -> Verdict:
    """Compare the MACs that ``edgefl profile FILE.onnx`` counts by torch's operations with those of the graph."""
    with reference("onnx"):
        shape = _shape(onnx.load(_path(subject)))
        if len(shape) < 2:
            raise Skip("its input has no samples")
    (row,) = edgefl.profile(str(_path(subject)), batch_size=shape[0], check_macs=True)
    if row.macs_forward == row.macs_forward_onnx:
        return EQUAL
    return Verdict("wrong", f"MACs: torch's operations {row.macs_forward:,}, the graph {row.macs_forward_onnx:,}")


JUDGE = Judge(
    "ONNX's models",
    "The models in the package `onnx`: single layers that torch exported, small graphs, and light versions of nine well-known networks. "
    "The results of "
    "edgefl's reader are compared with the stored ones, and `edgefl profile FILE.onnx` counts MACs by both counters.",
    ("onnx", "torch"),
    subjects,
    cases,
    every=20,
)
