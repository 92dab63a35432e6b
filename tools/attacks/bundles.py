"""Bundles that mean harm, with hashes that are right: the client of devices, ``verify`` and ``fed-round`` refuse or survive them."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from attacks.damage import TEXTS, damaged, mutated, odd, spelled
from attacks.harness import Bench, Case, Finding, Rng
from attacks.made import data, simulated, updates
from edgefl.bundle.manifest import SIGNATURE, SIGNER

_ZEROS = "0" * 64
STATUSES = (0, 1, 2, 3)
CLIENTS = ("infer", "train", "train")
READERS = (*CLIENTS, "verify", "fed-round")
"""What reads a bundle; devices train more often than they infer."""


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    client = bench.client

    def case(rng: Rng, folder: Path) -> str:
        here, kind = folder / "here", str(rng.choice(list(KINDS)))
        bundle, samples = here / "bundle", here / "data.npz"
        how = hostile(bench, here, kind, rng)
        reader = str(rng.choice(READERS if kind == "manifest" else CLIENTS if kind == "samples" else (*CLIENTS, "verify")))
        state = here / "new.state"
        if reader == "verify":
            ended = bench.edgefl.run("verify", bundle, cwd=here)
        elif reader == "fed-round":
            given = ("--updates", updates(bench), "--run", simulated(bench))
            ended = bench.edgefl.run("fed-round", bundle, *given, "--out", "out", cwd=here)
            if ended.status and (here / "out").exists():
                raise Finding(f"{reader}: {how}: failed, and wrote out")
        else:
            more = ("--out", state) if reader == "train" else ()
            ended = client.run(reader, bundle, "0.5", samples, *more, "--allow-unsigned", "--timeout", 20, cwd=here)
        ended.check(STATUSES)
        if ended.status and state.exists():
            raise Finding(f"{reader}: {how}: failed, and wrote {state.name}")
        check_secret(state, f"{reader}: {how}")
        return f"{reader}, {how}: {'refused' if ended.status else 'accepted'}"

    return case


def hostile(bench: Bench, here: Path, kind: str, rng: Rng) -> str:
    """Put a bundle that means harm into the folder ``here``, with samples and a secret beside it; return how it does."""
    bundle, samples = here / "bundle", here / "data.npz"
    shutil.copytree(simulated(bench) / "bundle", bundle)
    for signature in (SIGNATURE, SIGNER):  # an author who means harm signs, or gives none
        (bundle / signature).unlink(missing_ok=True)
    shutil.copyfile(data(bench), samples)
    (here / "secret").write_bytes(_SECRET * 100_000)  # enough for any tensor
    return KINDS[kind](bundle, samples, rng)


def check_secret(state: Path, what: str) -> None:
    """Raise :class:`Finding` if the file ``state`` was written and has the secret, which lies outside of the bundle."""
    if state.exists() and _SECRET in state.read_bytes():
        raise Finding(f"{what}: a file outside of the bundle is in {state.name}")


_SECRET = b"a private key"


def rehashed(
    bundle: Path, change: Callable[[dict[str, Any]], Any] | None = None, spell: Callable[[str], bytes] = str.encode
) -> None:
    """Give every file its hash in the manifest, and the manifest its own, after ``change``, which may return another value."""
    path = bundle / "manifest.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    for name in values["files"]:
        if (bundle / name).is_file():
            content = (bundle / name).read_bytes()
            values["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    values = (change and change(values)) or values
    if isinstance(values, dict):
        values = {**values, "manifest_sha256": _ZEROS}
    text = spell(json.dumps(values))
    path.write_bytes(text.replace(_ZEROS.encode(), hashlib.sha256(text).hexdigest().encode(), 1))


def _manifest(bundle: Path, _: Path, rng: Rng) -> str:
    """Change values of the manifest."""
    if rng.random() < 0.15:
        how, content = damaged((bundle / "manifest.json").read_bytes(), rng)
        (bundle / "manifest.json").write_bytes(content)
        return f"manifest: {how}"
    said: list[str] = []

    def change(values: dict[str, Any]) -> Any:
        for _ in range(int(rng.choice([1, 1, 2]))):
            how, values = mutated(values, rng)
            said.append(how)
        return values

    rehashed(bundle, change, lambda text: spelled(text, rng))
    return f"manifest: {said[0]}"


def _file(bundle: Path, _: Path, rng: Rng) -> str:
    """Damage a file."""
    files = sorted(path for path in (bundle / "0.5").rglob("*") if path.is_file())
    path = files[int(rng.integers(len(files)))]
    how, content = damaged(path.read_bytes(), rng)
    path.write_bytes(content)
    rehashed(bundle)
    return f"{path.suffix}: {how}"


def _graph(bundle: Path, _: Path, rng: Rng) -> str:
    """Change nodes and tensors of a graph."""
    files = sorted((bundle / "0.5").rglob("*.onnx"))
    path = files[int(rng.integers(len(files)))]
    model = onnx.load_model(path)
    name = str(rng.choice(sorted(GRAPHS)))
    try:
        GRAPHS[name](model.graph, rng)
        path.write_bytes(model.SerializeToString())
    except (ValueError, TypeError, DecodeError, IndexError):  # what the protobuf cannot hold
        path.write_bytes(damaged(path.read_bytes(), rng)[1])
    rehashed(bundle)
    return f"graph: {name}"


def _operator(graph: onnx.GraphProto, rng: Rng) -> None:
    node = graph.node[int(rng.integers(len(graph.node)))]
    other = (
        "Loop",
        "If",
        "Scan",
        "Gemm",
        "Reshape",
        "Expand",
        "Tile",
        "ConstantOfShape",
        "Conv",
        "RandomNormal",
        "",
        "Slice",
        "Pad",
        "Gather",
    )
    node.op_type = str(rng.choice(other))


def _wires(graph: onnx.GraphProto, rng: Rng) -> None:
    node = graph.node[int(rng.integers(len(graph.node)))]
    known = [name for one in graph.node for name in (*one.input, *one.output)] + ["", "nobody"]
    side = node.input if rng.random() < 0.6 else node.output
    side[int(rng.integers(len(side)))] = known[int(rng.integers(len(known)))]


def _lost(graph: onnx.GraphProto, rng: Rng) -> None:
    del graph.node[int(rng.integers(len(graph.node)))]


def _outside(graph: onnx.GraphProto, rng: Rng) -> None:
    tensor = graph.initializer.add() if not graph.initializer else graph.initializer[int(rng.integers(len(graph.initializer)))]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    places = ("../../secret", "secret", "../../data.npz", "manifest.json", "a/../" * 40 + "../../secret", "/etc/passwd")
    location = str(rng.choice([*places, "*/_ORT_MEM_ADDR_/*"]))
    tensor.external_data.add(key="location", value=location)


def _sizes(graph: onnx.GraphProto, rng: Rng) -> None:
    tensor = graph.initializer[int(rng.integers(len(graph.initializer)))]
    tensor.dims[int(rng.integers(len(tensor.dims)))] = int(rng.choice([0, -1, 1, 2**31, 2**62]))


def _type(graph: onnx.GraphProto, rng: Rng) -> None:
    value = [*graph.input, *graph.output][int(rng.integers(len(graph.input) + len(graph.output)))]
    value.type.tensor_type.elem_type = int(rng.integers(1, 24))


def _attribute(graph: onnx.GraphProto, rng: Rng) -> None:
    with_some = [node for node in graph.node if node.attribute]
    node = with_some[int(rng.integers(len(with_some)))]
    attribute = node.attribute[int(rng.integers(len(node.attribute)))]
    attribute.CopyFrom(onnx.helper.make_attribute(attribute.name, int(rng.choice([-(2**40), -1, 0, 7, 2**40]))))


def _names(graph: onnx.GraphProto, rng: Rng) -> None:
    graph.output[0].name = str(rng.choice(np.array(TEXTS[:20], object)))


GRAPHS: dict[str, Callable[[onnx.GraphProto, Rng], None]] = {
    "another operator": _operator, "other wires": _wires, "a node is gone": _lost, "a file outside": _outside, "another size": _sizes,
    "another type": _type, "another attribute": _attribute, "another name": _names,
}  # fmt: skip
"""How graphs are changed."""


def _samples(bundle: Path, path: Path, rng: Rng) -> str:
    """Change the samples of the device's owner, which may come from elsewhere too; the bundle stays."""
    del bundle
    if rng.random() < 0.4:
        how, content = damaged(path.read_bytes(), rng)
        path.write_bytes(content)
        return f"npz: {how}"
    arrays: dict[str, np.ndarray[Any, Any]] = dict(np.load(path))
    name = str(rng.choice(["x", "y"]))
    odd_arrays = {
        "no values": np.zeros((0, 1, 8, 8), np.float32),
        "another type": arrays[name].astype(str(rng.choice(["f8", "i1", "c8", "U3", "S5", "?", "f2", "M8[s]", "u8"]))),
        "another shape": arrays[name].reshape(-1, 1),
        "a number": np.array(3.0),
        "huge values": np.full_like(arrays[name], 2**62 if name == "y" else 3e38),
        "nan": arrays[name] * np.nan,
        "objects": np.array([odd(rng), None], object),
    }
    how = str(rng.choice(sorted(odd_arrays)))
    if rng.random() < 0.1:
        how = "a bomb"
        with zipfile.ZipFile(str(path), "w", zipfile.ZIP_DEFLATED) as archive:
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (2**24, 1, 8, 8)})
            with archive.open("x.npy", "w", force_zip64=True) as member:
                member.write(head.getvalue())
                for _ in range(40):
                    member.write(bytes(2**20))
        return f"npz: {how}"
    arrays[name] = odd_arrays[how]
    np.savez(path, **arrays)  # type: ignore[arg-type] # no array is called allow_pickle
    return f"npz: {how}"


KINDS: dict[str, Callable[[Path, Path, Rng], str]] = {
    "manifest": _manifest, "graph": _graph, "damaged file": _file, "samples": _samples,
}  # fmt: skip
"""How a bundle, or the samples that it is trained with, mean harm."""
