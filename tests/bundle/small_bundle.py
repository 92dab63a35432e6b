"""Bundles of two tiers so small that what they compute is seen at a glance, and the ways to put something else into them."""

import json
from typing import Any

import numpy as np
import onnx
import safetensors.numpy
from handmade import Regression, samples
from onnx import TensorProto, helper, numpy_helper

from edgefl.bundle import sandbox_child as trial_child
from edgefl.bundle.manifest import Manifest, TierEntry, TrainEntry
from edgefl.bundle.sandbox import TierChecks
from edgefl.bundle.write import write
from edgefl.util.files import sha256

WEIGHT = np.random.default_rng(2).standard_normal((6, 3)).astype(np.float32)


def checked_here(folder, labels, limits, bundle_bytes) -> TierChecks:
    """Check tiers in this process: what a child of its own does, in a tenth of the time."""
    checks = TierChecks()

    def hear(message: dict[str, Any]) -> None:
        if "problem" in message:
            checks.problems.append((f"tier {message['tier']}", message["problem"]))
        elif "errors" in message:
            checks.errors[message["tier"]] = tuple(message["errors"])

    trial_child.run(folder, list(labels), 1 << 32, hear)
    return checks


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes=None, *, inputs=None, outputs=None, opset=23, domains=(), functions=(), initializers=None) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes or [helper.make_node("MatMul", ["x", "weight"], ["logits"])],
        "forward",
        inputs or [value("x", ["batch", 6])],
        outputs or [value("logits", ["batch", 3])],
        [numpy_helper.from_array(WEIGHT, "weight")] if initializers is None else initializers,
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))


def reference(**changes) -> bytes:
    x = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
    tensors = {"x": x, "logits": x @ WEIGHT, **changes}
    return safetensors.numpy.save({name: tensor for name, tensor in tensors.items() if tensor is not None})


def tier(ratio: float, **changes) -> TierEntry:
    label = f"{ratio:g}"
    values = {
        "tier": ratio, "label": label, "device": None, "opset": 23, "forward": f"{label}/forward.onnx",
        "reference": f"{label}/reference.safetensors", "params": 18, "batch_size": 4, "costs": {"macs_forward": 18},
        "uncounted_ops": (), "accuracy_onnx": None, "accuracy_torch": None, "parity_max_abs_error": 0.0,
    }  # fmt: skip
    return TierEntry(**(values | changes))


def manifest(*tiers: TierEntry, **changes) -> Manifest:
    values = {
        "edgefl_version": "0", "method": "m", "model": "n", "dataset": "d", "input_shape": (6,), "classes": 3,
        "class_names": ("a", "b", "ü"), "preprocessing": {"scale": 1.0, "mean": 0.0, "std": 1.0},
        "tiers": tiers or (tier(1), tier(0.5)), "files": {},
    }  # fmt: skip
    return Manifest(**(values | changes))


def contents(graph: onnx.ModelProto | bytes | None = None, stored: bytes | None = None) -> dict[str, bytes]:
    """Two tiers; what is given takes the place of the first one's files."""
    sound = model().SerializeToString()
    graph = sound if graph is None else graph if isinstance(graph, bytes) else graph.SerializeToString()
    return {
        "1/forward.onnx": graph, "1/reference.safetensors": reference() if stored is None else stored,
        "0.5/forward.onnx": sound, "0.5/reference.safetensors": reference(),
    }  # fmt: skip


def written(folder, graph=None, stored=None):
    write(folder, manifest(), contents(graph, stored))
    return folder


def trainable(network: Regression, label: str = "0.5", variants=()) -> tuple[TierEntry, dict[str, bytes]]:
    """Return a tier that trains, and its files; its losses are worked out in NumPy, in float64."""
    first = network.first()
    x, y = samples(8, network.shape, network.classes)
    assert len(set(y)) == network.classes
    reads = {name: first[name] for name in ("fc.weight", "fc.bias")}
    logits = x.reshape(8, -1) @ reads["fc.weight"].T * first["scale"] + reads["fc.bias"]
    losses = network.trained([(x, y)] * 3)[1]
    shapes = {name: tensor.shape for name, tensor in first.items()}
    files = {
        "forward.onnx": network.predict(False), "reference.safetensors": {"x": x, "logits": logits.astype(np.float32)},
        "train.onnx": network.graph(), "predict.onnx": network.predict(True), "parameters.safetensors": first,
        "train_reference.safetensors": {"x": x, "y": y, "losses": np.array(losses, np.float32)},
        **({"train.1.onnx": network.graph(network.width)} if network.width else {}),
    }  # fmt: skip
    train = TrainEntry(
        graphs=tuple(f"{label}/{name}" for name in files if name.startswith("train") and name.endswith("onnx")),
        predict=f"{label}/predict.onnx", parameters=f"{label}/parameters.safetensors", batch_size=4, epochs=2,
        reference=f"{label}/train_reference.safetensors", optimizer=network.optimizer, lr=0.1, momentum=0.9,
        trained={name: shapes[name] for name in ("fc.weight", "fc.bias")}, statistics={"mean": shapes["mean"]},
        frozen={"scale": shapes["scale"]}, personal=network.personal, present=network.present,
        upload={name: shapes[name] for name in ("fc.weight", "fc.bias", "mean") if name not in network.personal},
        objective={"name": network.objective, "strength": network.strength},
    )  # fmt: skip
    entry = tier(float(label), opset=20, train=train, variants=variants)
    return entry, {
        f"{label}/{name}": content if isinstance(content, bytes) else saved(content) for name, content in files.items()
    }


def saved(tensors) -> bytes:
    return safetensors.numpy.save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})


def written_trainable(folder, network=None, files=(), **changes):
    """Write a bundle of one tier that trains; ``files`` take the place of those of their names, ``changes`` of the manifest's keys."""
    network = network or Regression()
    entry, own = trainable(network)
    given = {f"0.5/{name}": content for name, content in dict(files).items()}
    values = {"input_shape": network.shape, "classes": network.classes, "class_names": ("ant", "bee", "cat"), "round": 3}
    write(folder, manifest(entry, **(values | changes)), {**own, **given})
    return folder


def rewrite(bundle, change):
    """Change the manifest and give it the hash that then belongs to it: only its values can give it away."""
    path = bundle / "manifest.json"
    values = json.loads(path.read_text())
    change(values)
    text = json.dumps({**values, "manifest_sha256": "0" * 64})
    path.write_text(text.replace("0" * 64, sha256(text.encode()), 1))


def replaced(bundle, name, content):
    """Put ``content`` in place with its hash in the manifest: only what it holds can give it away."""
    (bundle / name).write_bytes(content)
    rewrite(bundle, lambda m: m["files"].update({name: {"sha256": sha256(content), "bytes": len(content)}}))
