"""Bundles and data that a client must refuse, each with its message, and hostile graphs."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import safetensors.numpy
from handmade import changed, samples


def arrays(**changes: Any) -> dict[str, Any]:
    x, y = samples(10)
    return {"x": x, "y": y, **changes}


X, Y = samples(10)
NAN = X.copy()
NAN[3, 0, 1, 1] = np.nan


WRONG_DATA: list[tuple[dict[str, Any], str]] = [
    (arrays(x=X[:, :, :1]), "x: got shape (10, 1, 1, 3), expected (samples, 1, 2, 3)"),
    (arrays(x=X.astype(np.float64)), "x: got float64, expected float32"),
    (arrays(x=NAN), "x holds NaN or infinity"),
    (arrays(x=X[:0], y=Y[:0]), "x: no sample"),
    (arrays(y=Y[:9]), "y: got int64 of shape (9,), expected integers of shape (10,)"),
    (arrays(y=Y.astype(np.float32)), "y: got float32"),
    (arrays(y=np.full(10, 3)), "y: labels 3 to 3, expected 0 to 2"),
    (arrays(y=np.full(10, -1)), "y: labels -1 to -1, expected 0 to 2"),
    ({"x": X}, "y: no labels, expected one per sample"),
    ({"y": Y}, "x: missing, expected arrays x and y; it has y"),
    (arrays(x=np.array([object()])), "not an .npz file of plain arrays"),
]


def bomb(path: Path) -> Path:
    """Write samples of 300 MB of zeros, which take little room; return the file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w", force_zip64=True) as x:
        for _ in range(300):
            x.write(bytes(1 << 20))
    return path


def edit_train(folder: Path, **keys: Any) -> None:
    """Change keys of how the bundle's first tier is trained."""
    tier = json.loads((folder / "manifest.json").read_text())["tiers"][0]
    changed(folder, tiers=[{**tier, "train": {**tier["train"], **keys}}])


def edit_tier(folder: Path, **keys: Any) -> None:
    """Change keys of the bundle's first tier."""
    tier = json.loads((folder / "manifest.json").read_text())["tiers"][0]
    changed(folder, tiers=[{**tier, **keys}])


def damage(folder: Path, name: str, content: bytes | None = None) -> None:
    path = folder / "0.5" / name
    path.write_bytes(path.read_bytes()[:-1] + b"\x00" if content is None else content)


def link(folder: Path) -> None:
    real = folder.parent / "elsewhere.onnx"
    (folder / "0.5" / "train.onnx").rename(real)
    (folder / "0.5" / "train.onnx").symlink_to(real)


def doubled(folder: Path) -> None:
    """Store one of the tier's parameters as float64."""
    tensors = safetensors.numpy.load_file(folder / "0.5" / "parameters.safetensors")
    tensors["fc.weight"] = tensors["fc.weight"].astype(np.float64)
    put(folder, "parameters.safetensors", safetensors.numpy.save(tensors))


def put(bundle: Path, name: str, content: bytes) -> None:
    """Put a file into a bundle, whose manifest then agrees with it."""
    (bundle / "0.5" / name).write_bytes(content)
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    files[f"0.5/{name}"] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    changed(bundle, files=files)


SPOILED: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: changed(f, format_version=1), "format_version: got 1, expected 2"),
    (lambda f: changed(f, format_version=True), "format_version: got True, expected 2"),
    (lambda f: changed(f, classes="3"), "classes: got '3', expected a value of type int"),
    (lambda f: changed(f, tiers=[[]]), "tiers.0: got list, expected a table"),
    (lambda f: (f / "manifest.json").write_text("[" * 100_000), "not valid JSON"),
    (
        lambda f: (f / "manifest.json").write_bytes((f / "manifest.json").read_bytes().replace(b'"round": 3', b'"round": 4')),
        "its SHA-256 is not its manifest_sha256",
    ),
    (lambda f: (f / "manifest.json").unlink(), "expected a folder that edgefl export wrote"),
    (lambda f: damage(f, "train.onnx"), "train.onnx: changed: its SHA-256"),
    (lambda f: damage(f, "train.onnx", b"short"), "train.onnx: changed: 5 bytes, expected"),
    (lambda f: damage(f, "parameters.safetensors"), "parameters.safetensors: changed"),
    (lambda f: (f / "0.5" / "train.onnx").unlink(), "train.onnx: missing, or a link"),
    (link, "train.onnx: missing, or a link"),
    (lambda f: edit_train(f, graphs=["../elsewhere.onnx"]), "'../elsewhere.onnx' is no file of the bundle"),
    (lambda f: edit_train(f, graphs=["/etc/passwd"]), "'/etc/passwd' is no file of the bundle"),
    (lambda f: edit_train(f, trained={"fc.weight": [6, 3], "fc.bias": [3]}), "fc.weight: got [3, 6], expected shape [6, 3]"),
    (lambda f: edit_train(f, frozen={"other": [1]}), "other: got nothing, expected shape [1]"),
    (doubled, "input p.fc.weight: got float64, expected float32, as the graph takes it"),
    (lambda f: edit_train(f, frozen={}), "has an input 'f.scale', for which the bundle has no value"),
    (lambda f: edit_train(f, lr="fast"), "tier 0.5: train: lr: got 'fast', expected a value of type number"),
    (lambda f: edit_train(f, graphs=["0.5/parameters.safetensors"]), "parameters.safetensors: not an ONNX model"),
    (lambda f: edit_train(f, graphs=[]), "train: graphs: got [], expected at least one training graph"),
    (lambda f: edit_train(f, graphs=[1]), "train: graphs: got [1], expected a list of texts"),
    (lambda f: edit_train(f, objective={"name": 1}), "train: objective: name: got 1, expected a value of type str"),
    (lambda f: edit_train(f, epochs=0), "train: epochs: got 0, expected at least 1"),
    (lambda f: edit_train(f, trained={"fc.weight": "big"}), "trained.fc.weight: got 'big', expected a list of sizes"),
    (lambda f: edit_train(f, trained={"fc.weight": [1 << 20, 1 << 20]}), "expected a list of sizes"),
    (lambda f: edit_tier(f, budget={"round_s": "long"}), "budget: round_s: got 'long', expected a number from 0, or none"),
    (lambda f: changed(f, classes=10**9), "class_names: got '3 names', expected one for each of 1000000000 classes"),
    (lambda f: changed(f, class_names=[1, 2, 3]), "class_names: got [1, 2, 3], expected a list of texts"),
    (lambda f: changed(f, input_shape=[-1, "a"]), "input_shape: got [-1, 'a'], expected a list of sizes"),
    (lambda f: changed(f, files={"a": 1}), "files.a: got int, expected a table"),
    (lambda f: edit_train(f, lr=-1e300), "lr: got -1e+300, expected a finite number of at most 63 bits"),
    (lambda f: edit_train(f, no_update="\ud800"), "no_update: got 'half a character', expected text"),
    (
        lambda f: edit_train(f, personal=["fc.bias"]),
        "upload: got 'fc.bias', expected one of the tier's tensors, not a personal one",
    ),
    (lambda f: edit_train(f, upload={"other": [1]}), "upload: got 'other', expected one of the tier's tensors"),
    (lambda f: edit_tier(f, batch_size=0), "tiers.0: batch_size: got 0, expected at least 1"),
    (lambda f: edit_tier(f, variants=[{}]), "tiers.0: variants: kind: got None, expected a value of type str"),
    (lambda f: changed(f, preprocessing={"scale": 1, "mean": "x", "std": 1}), "preprocessing: mean: got 'x', expected numbers"),
    (
        lambda f: changed(f, preprocessing={"scale": 1, "mean": 0, "std": [0]}),
        "preprocessing: std: got [0], expected numbers, and none of",
    ),
]


def hostile(body: str, shape: str) -> bytes:
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (float[batch,1,2,3] x) => (float[{shape}] out) {{ {body} }}"""
    return onnx.parser.parse_model(text).SerializeToString()


ENDLESS = """
    more = Constant<value = bool {1}>() start = ReduceSum<keepdims = 0>(x)
    out = Loop ("", more, start) <body = b (int64 i, bool go, float[] was) => (bool on, float[] now)
        { on = Identity(go) now = Sin(was) }>"""
GROWING = """
    sizes = Constant<value_ints = [100000, 20000]>() one = ConstantOfShape<value = float {1}>(sizes)
    all = ReduceSum<keepdims = 0>(one) out = Add(x, all)"""
