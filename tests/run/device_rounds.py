"""A run with its bundle, to which devices send updates, and the rounds that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch

from edgefl import RunConfig
from edgefl.bundle.manifest import Manifest, Objective, TierEntry, TrainEntry
from edgefl.bundle.manifest_file import read
from edgefl.bundle.write import write
from edgefl.client.parts import first_personal, trained_shapes
from edgefl.methods.networks import upload_shapes
from edgefl.run.device_round import FedRound, fed_round
from edgefl.run.folder import RunFolder
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.server.checkpoint import of_file, to_bytes
from edgefl.server.exchange import device_submodel
from edgefl.server.state import ServerState
from edgefl.util.files import sha256, write_bytes

AVERAGED = {"defence": "none"}
"""Keys of screening with which all updates count."""
SMALL = {
    "dataset": "digits", "model": "mlp", "method": "fedavg", "clients": 10, "rounds": 3, "local_epochs": 1, "eval_samples": 50,
    "tiers": (1.0,), "conditions": "ideal", "deadline_s": 10.0,
}  # fmt: skip


def write_bundle(run: Run, server_state: ServerState, folder: Path, round_: int, state: str) -> None:
    """Write a bundle as a device would get it, but for its graphs, which nobody runs here."""
    entries: list[TierEntry] = []
    contents: dict[str, bytes] = {}
    for tier in run.tiers:
        _, tensors = device_submodel(run.method, server_state, run.rules, run.config.clients, tier)
        personal = first_personal(run.method, run.architecture, tier, run.config.seed)
        shapes = {name: tuple(tensor.shape) for name, tensor in {**tensors, **personal}.items() if ":" not in name}
        parameters = trained_shapes(run.method, run.architecture, tier).keys() | personal.keys()
        paths = {key: f"{tier.label}/{key}" for key in ("forward", "reference", "train", "predict", "train_reference")}
        contents |= dict.fromkeys(paths.values(), b"")
        held = {name: tensor.contiguous() for name, tensor in {**tensors, **personal}.items()}
        contents[f"{tier.label}/parameters"] = safetensors.torch.save(held)
        train = TrainEntry(
            graphs=(paths["train"],), predict=paths["predict"], parameters=f"{tier.label}/parameters", reference=paths["train_reference"],
            optimizer="sgd", lr=0.1, momentum=0.0, batch_size=4, epochs=1,
            trained={name: shape for name, shape in shapes.items() if name in parameters},
            statistics={name: shape for name, shape in shapes.items() if name not in parameters}, frozen={}, personal=tuple(personal),
            upload=upload_shapes(run.method, run.architecture, tier), objective=Objective(name=run.config.objective),
        )  # fmt: skip
        entries.append(TierEntry(
            tier=tier.number, label=tier.label, device=None, opset=20, forward=paths["forward"], reference=paths["reference"], params=1,
            batch_size=4, costs={}, uncounted_ops=(), accuracy_onnx=None, accuracy_torch=None, parity_max_abs_error=0.0, train=train,
        ))  # fmt: skip
    data = run.data
    manifest = Manifest(
        edgefl_version="0", method=run.config.method, model="mlp", dataset="digits", round=round_, state_sha256=state,
        input_shape=data.input_shape, classes=data.classes, class_names=data.class_names, preprocessing={}, tiers=tuple(entries), files={},
    )  # fmt: skip
    write(folder, manifest, contents)


@dataclass(frozen=True)
class Offered:
    """A run with its bundle, and a folder for updates beside it."""

    run: Path

    @property
    def bundle(self) -> Path:
        return self.run / "bundle"

    @property
    def inbox(self) -> Path:
        folder = self.run.parent / f"inbox of {self.run.name}"
        folder.mkdir(exist_ok=True)
        return folder

    def state(self) -> ServerState:
        return of_file(self.run / "model.safetensors")

    def given(self, label: str = "1") -> dict[str, np.ndarray]:
        return safetensors.numpy.load((self.bundle / label / "parameters").read_bytes())

    def upload(self, label: str = "1") -> dict[str, tuple[int, ...]]:
        entry = next(entry for entry in read(self.bundle).tiers if entry.label == label)
        assert entry.train is not None
        return dict(entry.train.upload)

    def send(self, client: str, tensors: dict[str, np.ndarray], samples: int = 1, label: str = "1", **more: str) -> Path:
        manifest = read(self.bundle)
        about = {
            "format": "edgefl-update", "version": "1", "bundle": manifest.manifest_sha256, "round": str(manifest.round), "tier": label,
            "samples": str(samples), "steps": "1", "client": client, **more,
        }  # fmt: skip
        path = self.inbox / f"{client}.safetensors"
        path.write_bytes(safetensors.numpy.save(tensors, metadata=about))
        return path

    def sends_back(self, client: str, change: float = 0.0, label: str = "1", samples: int = 1) -> dict[str, np.ndarray]:
        """Send what was handed out, every value changed by as much."""
        tensors = {name: self.given(label)[name] + np.float32(change) for name in self.upload(label)}
        self.send(client, tensors, samples, label)
        return tensors

    def next(self, **options: Any) -> Offered:
        return Offered(self.play(**options).folder)

    def play(self, *, keep_anyway: bool = True, screening: Mapping[str, Any] | None = None, **options: Any) -> FedRound:
        """Play a round; whether the model gets worse, and whether updates look alike, matters to few tests."""
        out, screening = self.run.parent / f"after {self.run.name}", AVERAGED if screening is None else screening
        return fed_round(self.bundle, self.inbox, out, keep_anyway=keep_anyway, screening=screening, **options)


def offered(folder: Path, **keys: Any) -> Offered:
    """Return a run that has only begun: the first state counts as that after three rounds."""
    run = prepare(RunConfig.of({**SMALL, **keys}))
    target = RunFolder(folder)
    target.start(run.config)
    state = replace(run.start(), round=3)
    content = to_bytes(state)
    write_bytes(folder / "model.safetensors", content)
    write_bundle(run, state, folder / "bundle", 3, sha256(content))
    return Offered(folder)


def moved(tensors: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    # A file may be read in any order of its tensors: they are sorted here, so that each gets its own numbers.
    return {name: (tensors[name] + rng.normal(size=tensors[name].shape)).astype(np.float32) for name in sorted(tensors)}


def near(state: ServerState, expected: dict[str, np.ndarray]) -> None:
    assert state.model.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(state.model.tensors[name].numpy(), tensor, rtol=1e-4, atol=1e-5, err_msg=name)
