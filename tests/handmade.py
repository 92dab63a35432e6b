"""A bundle written by hand, of logistic regression: its training step's formulas stand here in ONNX's own text, its results in NumPy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import safetensors.numpy

SCALE = 0.5
PREPROCESSING = {"scale": 1 / 16, "mean": 0.25, "std": 0.5}


@dataclass(frozen=True)
class Regression:
    """softmax(scale·x·Wᵀ + b): trained W and b, a running mean of x as statistics, a frozen scale.

    With a ``width`` of w there is a second training graph, which moves the first w columns of W only.
    """

    shape: tuple[int, ...] = (1, 2, 3)
    classes: int = 3
    optimizer: str = "momentum"
    objective: str = "none"
    strength: float = 0.0
    present: bool = False
    personal: tuple[str, ...] = ()
    width: int = 0
    seed: int = 0
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def features(self) -> int:
        return int(np.prod(self.shape))

    def first(self) -> dict[str, np.ndarray]:
        """Return the tensors of parameters.safetensors."""
        rng = np.random.default_rng(self.seed)
        tensors = {"fc.weight": rng.normal(size=(self.classes, self.features)), "fc.bias": rng.normal(size=self.classes)}
        tensors |= {"mean": np.zeros(self.features), "scale": np.full(1, SCALE)}
        if self.objective == "scaffold":
            tensors |= {f"control:{name}": rng.normal(size=tensors[name].shape) for name in self.pulled}
        return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}

    @property
    def pulled(self) -> list[str]:
        """The parameters that the objective acts on."""
        return [name for name in ("fc.weight", "fc.bias") if name not in self.personal] if self.objective != "none" else []

    def graph(self, columns: int | None = None) -> bytes:
        """Return the training graph; with ``columns`` the one that moves the first columns only."""
        d, c = self.features, self.classes
        size = {"fc.weight": f"[{c},{d}]", "fc.bias": f"[{c}]", "mean": f"[{d}]"}
        reads = [
            f"float[batch,{','.join(map(str, self.shape))}] x",
            "int64[batch] y",
            'float[1] "f.scale"',
            f'float[{d}] "s.mean"',
        ]
        reads += (
            ["float lr"] + (["float beta"] if self.optimizer != "sgd" else []) + ([f"bool[{c}] present"] if self.present else [])
        )
        writes = ["float loss", f'float[{d}] "s.mean.out"']
        held = {"sgd": "p", "momentum": "pm", "adam": "pmv"}[self.optimizer]
        for name in ("fc.weight", "fc.bias"):
            reads += [f'float{size[name]} "{kind}.{name}"' for kind in held]
            writes += [f'float{size[name]} "{kind}.{name}.out"' for kind in held]
        if self.optimizer == "adam":
            reads, writes = [*reads, "float t"], [*writes, 'float "t.out"']
        lines = [
            "flat = Flatten<axis=1>(x)", 'scaled = Mul(flat, "f.scale")',
            'raw = Gemm<transB=1>(scaled, "p.fc.weight", "p.fc.bias")',
            "zero = Constant<value_float=0.0>()", "one = Constant<value_float=1.0>()",
            "logits = Where(present, raw, zero)" if self.present else "logits = Identity(raw)",
            "log = LogSoftmax<axis=1>(logits)", "chances = Exp(log)",
            f"depth = Constant<value_ints=[{c}]>()", "values = Constant<value_floats=[0.0,1.0]>()", "wanted = OneHot(y, depth, values)",
            "rows = Shape<end=1>(x)", "first = Constant<value_int=0>()", "count = Gather(rows, first)", "n = Cast<to=1>(count)",
            "off = Sub(chances, wanted)", "share = Div(off, n)",
            "delta = Where(present, share, zero)" if self.present else "delta = Identity(share)",
            "hits = Mul(wanted, log)", "sum = ReduceSum<keepdims=0>(hits)", "mean = Div(sum, n)", "loss0 = Neg(mean)",
            '"g.fc.weight" = Gemm<transA=1>(delta, scaled)', "axis = Constant<value_ints=[0]>()",
            '"g.fc.bias" = ReduceSum<keepdims=0>(delta, axis)',
            "seen = ReduceMean<keepdims=0>(flat, axis)", "kept = Constant<value_float=0.9>()", "new = Constant<value_float=0.1>()",
            'a = Mul("s.mean", kept)', "b = Mul(seen, new)", '"s.mean.out" = Add(a, b)',
        ]  # fmt: skip
        if columns is not None:
            mask = ",".join(["1.0"] * columns + ["0.0"] * (d - columns))
            lines += [f"mask = Constant<value_floats=[{mask}]>()", '"g.cut" = Mul("g.fc.weight", mask)']
        loss = "loss0"
        for name in ("fc.weight", "fc.bias"):
            gradient = "g.cut" if columns is not None and name == "fc.weight" else f"g.{name}"
            if name in self.pulled:
                reads += [f'float{size[name]} "f.start.{name}"']
                loss, gradient, more = self._term(name, loss, gradient)
                lines += more
                if self.objective != "prox":
                    reads += [f'float{size[name]} "f.shift.{name}"']
            lines += self._update(name, gradient)
        if self.optimizer == "adam":
            lines += ['"t.out" = Add(t, one)']
        lines.append(f'loss = Identity("{loss}")')
        body = "\n".join(lines)
        text = f'<ir_version: 10, opset_import: ["": 20]> train ({", ".join(reads)}) => ({", ".join(writes)}) {{ {body} }}'
        return _checked(text)

    def _term(self, name: str, loss: str, gradient: str) -> tuple[str, str, list[str]]:
        """Return the names of loss and gradient with the objective's term, and the lines that work them out."""
        lines = []
        if self.objective != "scaffold":
            lines += [
                f'"d.{name}" = Sub("p.{name}", "f.start.{name}")', f'"mu.{name}" = Constant<value_float={self.strength:f}>()',
                f'"pull.{name}" = Mul("d.{name}", "mu.{name}")', f'"g1.{name}" = Add("{gradient}", "pull.{name}")',
                f'"e.{name}" = Mul("pull.{name}", "d.{name}")', f'"q.{name}" = ReduceSum<keepdims=0>("e.{name}")',
                f'"half.{name}" = Constant<value_float=0.5>()', f'"h.{name}" = Mul("q.{name}", "half.{name}")',
                f'"l1.{name}" = Add("{loss}", "h.{name}")',
            ]  # fmt: skip
            loss, gradient = f"l1.{name}", f"g1.{name}"
        if self.objective != "prox":
            lines += [
                f'"g2.{name}" = Add("{gradient}", "f.shift.{name}")', f'"i.{name}" = Mul("p.{name}", "f.shift.{name}")',
                f'"k.{name}" = ReduceSum<keepdims=0>("i.{name}")', f'"l2.{name}" = Add("{loss}", "k.{name}")',
            ]  # fmt: skip
            loss, gradient = f"l2.{name}", f"g2.{name}"
        else:
            lines += []
        return loss, gradient, lines

    def _update(self, name: str, gradient: str) -> list[str]:
        change = gradient
        lines = []
        if self.optimizer == "momentum":
            lines = [f'"bm.{name}" = Mul("m.{name}", beta)', f'"m.{name}.out" = Add("bm.{name}", "{gradient}")']
            change = f"m.{name}.out"
        if self.optimizer == "adam":
            lines = [
                f'"b2.{name}" = Constant<value_float=0.999>()', f'"eps.{name}" = Constant<value_float=0.00000001>()',
                f'"r.{name}" = Sub(one, beta)', f'"r2.{name}" = Sub(one, "b2.{name}")',
                f'"bm.{name}" = Mul("m.{name}", beta)', f'"rg.{name}" = Mul("{gradient}", "r.{name}")',
                f'"m.{name}.out" = Add("bm.{name}", "rg.{name}")', f'"g.sq.{name}" = Mul("{gradient}", "{gradient}")',
                f'"bv.{name}" = Mul("v.{name}", "b2.{name}")', f'"rv.{name}" = Mul("g.sq.{name}", "r2.{name}")',
                f'"v.{name}.out" = Add("bv.{name}", "rv.{name}")', f'"t1.{name}" = Add(t, one)',
                f'"c1.{name}" = Pow(beta, "t1.{name}")', f'"c2.{name}" = Pow("b2.{name}", "t1.{name}")',
                f'"k1.{name}" = Sub(one, "c1.{name}")', f'"k2.{name}" = Sub(one, "c2.{name}")',
                f'"mh.{name}" = Div("m.{name}.out", "k1.{name}")', f'"vh.{name}" = Div("v.{name}.out", "k2.{name}")',
                f'"root.{name}" = Sqrt("vh.{name}")', f'"den.{name}" = Add("root.{name}", "eps.{name}")',
                f'"change.{name}" = Div("mh.{name}", "den.{name}")',
            ]  # fmt: skip
            change = f"change.{name}"
        return [*lines, f'"by.{name}" = Mul("{change}", lr)', f'"p.{name}.out" = Sub("p.{name}", "by.{name}")']

    def predict(self, weights: bool) -> bytes:
        """Return the inference graph: with its weights as inputs, or inside it."""
        d, c = self.features, self.classes
        sizes = {"p.fc.weight": (c, d), "p.fc.bias": (c,), "f.scale": (1,)}
        held = ", ".join(f'float[{",".join(map(str, shape))}] "{name}"' for name, shape in sizes.items())
        body = (
            'flat = Flatten<axis=1>(x) scaled = Mul(flat, "f.scale") logits = Gemm<transB=1>(scaled, "p.fc.weight", "p.fc.bias")'
        )
        reads = f"float[batch,{','.join(map(str, self.shape))}] x, {held}"
        model = onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 20]> predict ({reads}) => (float[batch,{c}] logits) {{ {body} }}'
        )
        if not weights:
            first = self.first()
            model.graph.initializer.extend(onnx.numpy_helper.from_array(first[name[2:]], name) for name in sizes)
            del model.graph.input[1:]
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())

    def references(self, label: str) -> dict[str, bytes]:
        """Return the two files of three samples: with their outputs, and with labels and the losses of three steps."""
        x, y = samples(3, self.shape, min(self.classes, self.features))
        first = self.first()
        logits = SCALE * x.reshape(3, -1) @ first["fc.weight"].T + first["fc.bias"]
        losses = np.array(replace(self, present=False).trained([(x, y)] * 3)[1], np.float32)
        found = {"reference": {"x": x, "logits": logits}, "train_reference": {"x": x, "y": y, "losses": losses}}
        return {f"{label}/{name}.safetensors": safetensors.numpy.save(tensors) for name, tensors in found.items()}

    def write(self, folder: Path, round_: int = 3, label: str = "0.5", **top: Any) -> Path:
        """Write the bundle, with whatever keys of the manifest are given instead of its own; return the folder."""
        graphs = {f"{label}/train.onnx": self.graph()}
        if self.width:
            graphs[f"{label}/train.1.onnx"] = self.graph(self.width)
        first = self.first()
        shapes = {name: list(tensor.shape) for name, tensor in first.items()}
        train = {
            "graphs": list(graphs), "predict": f"{label}/predict.onnx", "parameters": f"{label}/parameters.safetensors",
            "reference": f"{label}/train_reference.safetensors", "optimizer": self.optimizer, "lr": 0.1, "momentum": 0.9,
            "batch_size": 4, "epochs": 2,
            "trained": {name: shapes[name] for name in ("fc.weight", "fc.bias")},
            "statistics": {"mean": shapes["mean"]}, "frozen": {"scale": shapes["scale"]}, "personal": list(self.personal),
            "upload": {name: shapes[name] for name in ("fc.weight", "fc.bias", "mean") if name not in self.personal},
            "objective": {"name": self.objective, "strength": self.strength}, "present": self.present, "no_update": "",
            "predicted_memory_bytes": None, "onnx_peak_bytes": None,
        }  # fmt: skip
        files = {
            **graphs, f"{label}/predict.onnx": self.predict(True), f"{label}/forward.onnx": self.predict(False),
            f"{label}/parameters.safetensors": safetensors.numpy.save(first), **self.references(label),
        }  # fmt: skip
        tier = {
            "tier": float(label), "label": label, "device": "raspberry-pi-4", "forward": f"{label}/forward.onnx",
            "reference": f"{label}/reference.safetensors", "batch_size": 4, "variants": [],
            "budget": {"memory_bytes": None, "round_s": None, "energy_j": None}, "train": {**train, **self.keys},
        }  # fmt: skip
        manifest = {
            "format_version": 2, "manifest_sha256": "0" * 64, "round": round_, "state_sha256": None, "input_shape": list(self.shape),
            "input_dtype": "float32", "classes": self.classes, "class_names": ["ant", "bee", "cat", "dog"][: self.classes],
            "preprocessing": PREPROCESSING, "tiers": [tier],
            "files": {path: {"sha256": _sha256(content), "bytes": len(content)} for path, content in files.items()}, **top,
        }  # fmt: skip
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        seal(folder, manifest)
        return folder

    def trained(
        self, batches: Sequence[tuple[np.ndarray, np.ndarray]], lr: float = 0.1, first: dict[str, np.ndarray] | None = None,
        memory: dict[str, np.ndarray] | None = None, graphs: Sequence[int] = (),
    ) -> tuple[dict[str, np.ndarray], list[float]]:  # fmt: skip
        """Return W, b and mean after the batches, and their losses, worked out in float64."""
        start = {name: tensor.astype(np.float64) for name, tensor in self.first().items()}
        now = {**start, **(first or {})}
        moment = {name: np.zeros_like(now[name]) for name in ("fc.weight", "fc.bias")}
        square = {name: np.zeros_like(now[name]) for name in moment}
        losses = []
        everyone = np.unique(np.concatenate([y for _, y in batches]))
        for step, (x, y) in enumerate(batches):
            rows = x.reshape(len(x), -1).astype(np.float64)
            logits = SCALE * rows @ now["fc.weight"].T + now["fc.bias"]
            mask = np.isin(np.arange(self.classes), everyone) if self.present else np.ones(self.classes, bool)
            logits = np.where(mask, logits, 0.0)
            chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            loss = -np.log(chances[np.arange(len(y)), y]).mean()
            delta = (chances - np.eye(self.classes)[y]) / len(y) * mask
            gradients = {"fc.weight": SCALE * delta.T @ rows, "fc.bias": delta.sum(0)}
            if graphs and graphs[step]:
                gradients["fc.weight"][:, self.width :] = 0
            for name in self.pulled:
                kept = (memory or {}).get(name, 0.0)
                shift = {"prox": 0.0, "dyn": -kept, "scaffold": start.get(f"control:{name}", 0.0) - kept}[self.objective]
                mu = 0.0 if self.objective == "scaffold" else self.strength
                loss += mu / 2 * ((now[name] - start[name]) ** 2).sum() + (shift * now[name]).sum()
                gradients[name] = gradients[name] + mu * (now[name] - start[name]) + shift
            losses.append(float(loss))
            now["mean"] = 0.9 * now["mean"] + 0.1 * rows.mean(0)
            for name, g in gradients.items():
                if self.optimizer == "sgd":
                    now[name] = now[name] - lr * g
                elif self.optimizer == "momentum":
                    moment[name] = 0.9 * moment[name] + g
                    now[name] = now[name] - lr * moment[name]
                else:
                    moment[name] = 0.9 * moment[name] + 0.1 * g
                    square[name] = 0.999 * square[name] + 0.001 * g**2
                    first_, second = moment[name] / (1 - 0.9 ** (step + 1)), square[name] / (1 - 0.999 ** (step + 1))
                    now[name] = now[name] - lr * first_ / (np.sqrt(second) + 1e-8)
        return {name: now[name] for name in ("fc.weight", "fc.bias", "mean")}, losses


def seal(folder: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest with its own hash."""
    content = json.dumps({**manifest, "manifest_sha256": "0" * 64}, indent=1).encode()
    (folder / "manifest.json").write_bytes(content.replace(b'"' + b"0" * 64, b'"' + _sha256(content).encode(), 1))


def changed(folder: Path, **top: Any) -> None:
    """Change keys of a bundle's manifest and seal it again."""
    seal(folder, {**json.loads((folder / "manifest.json").read_text()), **top})


def changed_file(folder: Path, path: str, content: bytes, **top: Any) -> None:
    """Write a file of a bundle, give the manifest its hash and other keys, and seal that again."""
    (folder / path).write_bytes(content)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    changed(folder, files={**files, path: {"sha256": _sha256(content), "bytes": len(content)}}, **top)


def without_defaults(folder: Path) -> None:
    """Remove the keys that a manifest may lack, if they have their default values, and seal it again."""
    manifest = json.loads((folder / "manifest.json").read_text())
    defaults = {
        "input_dtype": "float32", "variants": [], "personal": [], "present": False, "no_update": "",
        "objective": {"name": "none", "strength": 0.0},
    }  # fmt: skip
    for table in (manifest, manifest["tiers"][0], manifest["tiers"][0]["train"]):
        for key, value in defaults.items():
            if key in table and table[key] == value:
                del table[key]
    seal(folder, {**manifest, "target_shape": None})


def samples(n: int, shape: tuple[int, ...] = (1, 2, 3), classes: int = 3, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return samples whose class shows in them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    x = rng.normal(size=(n, *shape)).astype(np.float32)
    x.reshape(n, -1)[np.arange(n), y] += 3
    return x, y.astype(np.int64)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _checked(text: str) -> bytes:
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())
