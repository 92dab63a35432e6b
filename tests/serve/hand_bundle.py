"""A small bundle whose graphs are written by hand: two layers with their backward pass, node by node."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import safetensors.numpy
from onnx import TensorProto, helper

from edgefl.bundle.manifest import Manifest
from edgefl.bundle.manifest_file import seal, text_of
from edgefl.bundle.signature import signature_files
from edgefl.util.keys import SigningKey

SHAPE, HIDDEN, CLASSES = (1, 8, 8), 12, 4
NAMES = ("one.weight", "one.bias", "two.weight", "two.bias")
LR, MOMENTUM = 0.1, 0.9


def parameters(hidden: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(hidden)
    shapes = ((hidden, 64), (hidden,), (CLASSES, hidden), (CLASSES,))
    return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in zip(NAMES, shapes, strict=True)}


def samples(count: int, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images, each with one bright quarter: the quarter's number is the class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=count)
    x = rng.normal(0, 0.6, (count, *SHAPE)).astype(np.float32)
    for sample, label in zip(x, y, strict=True):
        sample[0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 1.5
    return x, y


def nodes_of(text: str) -> list[onnx.NodeProto]:
    """Lines ``output = Operator(input, ...) name=value ...`` as nodes."""
    nodes = []
    for line in filter(str.strip, text.splitlines()):
        left, right = line.strip().split(" = ", 1)
        call, _, settings = right.partition(") ")
        operator, _, inputs = call.rstrip(")").partition("(")
        attributes: dict[str, Any] = {key: int(value) for key, value in (part.split("=") for part in settings.split())}
        nodes.append(helper.make_node(operator, inputs.split(", "), [left], **attributes))
    return nodes


FORWARD = """
    flat = Flatten(x)
    z1 = Gemm(flat, {p}one.weight, {p}one.bias) transB=1
    h = Relu(z1)
    logits = Gemm(h, {p}two.weight, {p}two.bias) transB=1
"""
MASK = """
    seen = Where(present, logits, never)
"""
BACKWARD = """
    logp = LogSoftmax({seen}) axis=1
    hot = OneHot(y, depth, off_on)
    size = Shape(y)
    n = Cast(size) to=1
    picked = Mul(hot, logp)
    sum = ReduceSum(picked) keepdims=0
    negative = Neg(sum)
    over = Div(negative, n)
    whole = Reshape(over, none)
    loss = Mul(whole, times)
    prob = Exp(logp)
    off = Sub(prob, hot)
    dz2 = Div(off, n)
    g.two.weight = Gemm(dz2, h) transA=1
    g.two.bias = ReduceSum(dz2, zero) keepdims=0
    dh = MatMul(dz2, p.two.weight)
    on = Greater(z1, nought)
    mask = Cast(on) to=1
    dz1 = Mul(dh, mask)
    g.one.weight = Gemm(dz1, flat) transA=1
    g.one.bias = ReduceSum(dz1, zero) keepdims=0
"""
UPDATE = """
    kept.{n} = Mul(beta, m.{n})
    m.{n}.out = Add(kept.{n}, g.{n})
    step.{n} = Mul(lr, m.{n}.out)
    p.{n}.out = Sub(p.{n}, step.{n})
"""
SHIFTED = """
    moved.{n} = Sub(p.{n}, f.start.{n})
    pull.{n} = Mul(strength, moved.{n})
    both.{n} = Add(f.shift.{n}, pull.{n})
    all.{n} = Add(g.{n}, both.{n})
    step.{n} = Mul(lr, all.{n})
    p.{n}.out = Sub(p.{n}, step.{n})
"""
PERSONAL = """
    step.{n} = Mul(lr, g.{n})
    p.{n}.out = Sub(p.{n}, step.{n})
"""


def model(
    text: str, inputs: dict[str, tuple[Any, ...]], outputs: dict[str, tuple[Any, ...]], stored: dict[str, np.ndarray]
) -> bytes:
    def value(name: str, shape: tuple[Any, ...]) -> onnx.ValueInfoProto:
        ids = name == "y" or shape == ("batch", 7)
        kind = TensorProto.BOOL if name == "present" else TensorProto.INT64 if ids else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes_of(text),
        "by hand",
        [value(name, shape) for name, shape in inputs.items()],
        [value(name, shape) for name, shape in outputs.items()],
        [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


def forward_graph(start: dict[str, np.ndarray], *, weights_inside: bool) -> bytes:
    prefix = "" if weights_inside else "p."
    inputs = {"x": ("batch", *SHAPE), **({} if weights_inside else {f"p.{name}": array.shape for name, array in start.items()})}
    return model(FORWARD.format(p=prefix), inputs, {"logits": ("batch", CLASSES)}, start if weights_inside else {})


def train_graph(start: dict[str, np.ndarray], *, shifted: bool = False, times: int = 1) -> bytes:
    """With momentum; or SGD for the classes ``present`` only, with an objective's shift and a pull of 0.3 to its start but for two.bias.

    The loss is said ``times``-fold; gradients are as they are.
    """
    roles = ("p.", "f.shift.", "f.start.") if shifted else ("p.", "m.")
    tensors = {f"{role}{n}": a.shape for role in roles for n, a in start.items() if not (role[0] == "f" and n == "two.bias")}
    others: dict[str, tuple[Any, ...]] = {"lr": (), **({"present": (CLASSES,)} if shifted else {"beta": ()})}
    stored: dict[str, np.ndarray] = {
        "depth": np.array(CLASSES, np.int64),
        "off_on": np.array([0, 1], np.float32),
        "none": np.array([], np.int64),
        "zero": np.array([0], np.int64),
        "nought": np.array(0, np.float32),
        "never": np.array(-1e9, np.float32),
        "strength": np.array(0.3, np.float32),
        "times": np.array(times, np.float32),
    }
    outputs = {f"{name}.out": shape for name, shape in tensors.items() if not name.startswith("f.")}
    backward = (MASK if shifted else "") + BACKWARD.format(seen="seen" if shifted else "logits")
    steps = dict.fromkeys(NAMES, SHIFTED if shifted else UPDATE) | ({"two.bias": PERSONAL} if shifted else {})
    updates = "".join(steps[name].format(n=name) for name in NAMES)
    text = FORWARD.format(p="p.") + backward + updates
    return model(text, {"x": ("batch", *SHAPE), "y": ("batch",), **tensors, **others}, {"loss": (), **outputs}, stored)


def run_steps(graph: bytes, start: dict[str, np.ndarray], feeds: list[tuple[np.ndarray, np.ndarray]], **others: Any) -> Any:
    """Return losses and final tensors of plain onnxruntime in Python, one step per batch of ``feeds``."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    bare = {name: re.sub(r"^(p|m|f\.shift|f\.start)\.", "", name) for name in names if "." in name}
    zero = {name for name in bare if name.startswith(("m.", "f.shift."))}
    state = {name: np.zeros_like(start[own]) if name in zero else start[own] for name, own in bare.items()}
    fixed = {name: value if name == "present" else np.array(value, np.float32) for name, value in others.items()}
    losses = []
    for x, y in feeds:
        outputs = session.run(None, {"x": x, "y": y, **state, **fixed})
        named = dict(zip([value.name for value in session.get_outputs()], outputs, strict=True))
        losses.append(float(named.pop("loss")))
        state |= {name.removesuffix(".out"): array for name, array in named.items()}
    return losses, state


def tier_of(ratio: float, hidden: int, kind: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A tier's entry and its files; ``kind`` is momentum, scaffold or none (it cannot be trained)."""
    label, start = f"{ratio:g}", parameters(hidden)
    x, y = samples(4, seed=1)
    forward = forward_graph(start, weights_inside=True)
    logits = onnxruntime.InferenceSession(forward).run(None, {"x": x})[0]
    files = {
        f"{label}/forward.onnx": forward,
        f"{label}/reference.safetensors": safetensors.numpy.save({"x": x, "logits": logits}),
    }
    train = None
    if kind != "none":
        if kind == "momentum":
            graphs = {"train.onnx": train_graph(start)}
            losses, _ = run_steps(graphs["train.onnx"], start, [(x, y)] * 3, lr=LR, beta=MOMENTUM)
        else:
            graphs = {f"train-{n}.onnx": train_graph(start, shifted=True, times=n + 1) for n in (0, 1)}
            losses, _ = run_steps(graphs["train-0.onnx"], start, [(x, y)] * 3, lr=LR, present=np.ones(CLASSES, bool))
        reference = {"x": x, "y": y, "losses": np.array(losses, np.float32)}
        files |= {f"{label}/{name}": graph for name, graph in graphs.items()}
        files |= {
            f"{label}/predict.onnx": forward_graph(start, weights_inside=False),
            f"{label}/parameters.safetensors": safetensors.numpy.save(start),
            f"{label}/train_reference.safetensors": safetensors.numpy.save(reference),
        }
        shapes = {name: array.shape for name, array in start.items()}
        train = {
            "graphs": [f"{label}/{name}" for name in graphs],
            "predict": f"{label}/predict.onnx",
            "parameters": f"{label}/parameters.safetensors",
            "reference": f"{label}/train_reference.safetensors",
            "optimizer": "sgd" if kind == "scaffold" else "momentum",
            "lr": LR,
            "momentum": 0.0 if kind == "scaffold" else MOMENTUM,
            "batch_size": 16,
            "epochs": 5,
            "trained": shapes,
            "statistics": {},
            "frozen": {},
            "personal": ["two.bias"] if kind == "scaffold" else [],
            "upload": {name: shape for name, shape in shapes.items() if kind != "scaffold" or name != "two.bias"},
            "objective": {"name": "scaffold" if kind == "scaffold" else "none", "strength": 0.0},
            "present": kind == "scaffold",
            "labels": kind == "scaffold",
            "predicted_memory_bytes": 123_000,
        }
    size = sum(array.size for array in start.values())
    entry = {
        "tier": ratio, "label": label, "device": "phone-mid", "opset": 20, "forward": f"{label}/forward.onnx",
        "reference": f"{label}/reference.safetensors", "train": train, "params": size, "batch_size": 16, "costs": {},
        "uncounted_ops": (), "accuracy_onnx": 0.75, "accuracy_torch": None, "parity_max_abs_error": 0.0,
    }  # fmt: skip
    return entry, files


def write_bundle(folder: Path, made: Any = None, **changes: Any) -> Manifest:
    """Write a bundle with three tiers: 1 trains with momentum, 0.5 as SCAFFOLD's client with two graphs, 0.25 only classifies."""
    made = made or [tier_of(1, HIDDEN, "momentum"), tier_of(0.5, 6, "scaffold"), tier_of(0.25, 3, "none")]
    contents = {path: content for _, files in made for path, content in files.items()}
    values = {
        "edgefl_version": "0", "method": "fedavg", "model": "by-hand", "dataset": "quarters", "round": 3, "input_shape": SHAPE,
        "classes": CLASSES, "class_names": ("top left", "top right", "bottom left", "bottom right"),
        "preprocessing": {"scale": 1 / 16, "mean": 0.3, "std": 0.4}, "tiers": [entry for entry, _ in made], "files": {},
    }  # fmt: skip
    manifest = seal(folder, Manifest.model_validate({**values, **changes}), contents)
    text = text_of(manifest)
    for path, content in {**contents, "manifest.json": text, **signature_files(text, SigningKey.own())}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return manifest


def write_text_bundle(folder: Path) -> None:
    """A bundle whose model takes the ids of seven characters and says the last of them again."""
    x = np.array([[0, 1, 2, 3, 0, 1, 2]])
    text = """
    last = Gather(x, six) axis=1
    logits = OneHot(last, depth, off_on)
    """
    stored: dict[str, np.ndarray] = {
        "six": np.array(6, np.int64),
        "depth": np.array(4, np.int64),
        "off_on": np.array([0, 5], np.float32),
    }
    forward = model(text, {"x": ("batch", 7)}, {"logits": ("batch", 4)}, stored)
    entry, _ = tier_of(1, 3, "none")
    reference = safetensors.numpy.save({"x": x, "logits": np.array([[0, 0, 5, 0]], np.float32)})
    preprocessing = {"alphabet": " abc", "window": 7}
    write_bundle(
        folder,
        made=[(entry, {"1/forward.onnx": forward, "1/reference.safetensors": reference})],
        input_shape=(7,), input_dtype="int64", class_names=tuple(" abc"), preprocessing=preprocessing,
    )  # fmt: skip
