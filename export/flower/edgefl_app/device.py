"""What a device does for a round of edgefl: it says what it is, stores training graphs once, trains, and keeps what is its own.

It needs onnxruntime, NumPy and safetensors. Only with ``trainer="torch"`` in its node configuration it needs edgefl and torch.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import BadZipFile

import numpy as np
import safetensors.numpy
from edgefl_bundle import BudgetError, Bundle, ClientError, InputError, State, read_bundle, write
from edgefl_client import Training, train
from edgefl_data import Samples, read_data

Fields = dict[str, Any]
Blobs = Mapping[str, bytes]
Handler = Callable[["Owner", Fields, Blobs, float], tuple[Fields, Blobs]]
KEPT = 3
"""So many states of a run are kept. A server that resumes may ask for an earlier round again."""
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "trainer": (lambda value: value in ("onnx", "torch"), "'onnx' or 'torch'"),
    "client": (lambda value: isinstance(value, int) and value >= 0, "a whole number from 0"),
    "memory-mb": (lambda value: isinstance(value, int | float) and 0 < value < float("inf"), "a number above 0"),
}
"""What values of the node configuration must be, and how that is said."""
_PACKAGES = ("flwr", "onnxruntime", "numpy", "safetensors", "torch", "edgefl-sim")


@dataclass(frozen=True)
class Owner:
    """What the owner of a device decides, in the SuperNode's ``--node-config``.

    Attributes:
        device: the name of its profile in edgefl.
        data: an .npz file with x and y, or a folder of images with one subfolder per class.
        state: the folder for training graphs and for what the device keeps between rounds.
        trainer: "onnx" (onnxruntime) or "torch".
        client: the number of the client that it shall be; None: the server decides.
        memory_bytes: the most memory that training may take; None: no limit.
        problem: what is wrong with these values; else empty.
    """

    device: str
    data: Path
    state: Path
    trainer: str = "onnx"
    client: int | None = None
    memory_bytes: int | None = None
    problem: str = ""

    @classmethod
    def of(cls, config: Mapping[str, Any], node: int) -> Owner:
        """Return what ``--node-config`` says; a device without ``state`` keeps its files in Flower's folder, apart from other nodes."""
        home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
        state = Path(str(config["state"])) if "state" in config else home / "edgefl" / str(node)
        wrong = {name: told for name, (fits, told) in _VALUES.items() if name in config and not fits(config[name])}
        problem = "; ".join(f"{name}: got {config[name]!r}, expected {told}" for name, told in wrong.items())
        config = {name: value for name, value in config.items() if name not in wrong}
        memory_mb = config.get("memory-mb")
        return cls(
            str(config.get("device", "")),
            Path(str(config.get("data", ""))),
            state,
            config.get("trainer", "onnx"),
            config.get("client"),
            None if memory_mb is None else int(memory_mb * 1e6),
            problem,
        )


def queried(owner: Owner, asked: Fields, blobs: Blobs, started_s: float) -> tuple[Fields, Blobs]:
    """Answer a query: ``hello``, or a ``setup`` to store."""
    if asked["ask"] != "setup":
        return _hello(owner), {}
    try:
        _store(owner, asked, blobs)
    except (ClientError, OSError) as error:
        return {"status": "failed", "problem": str(error)[:2000]}, {}
    return {"status": "stored"}, {}


def _hello(owner: Owner) -> Fields:
    problem, samples, key = owner.problem, 0, secrets.token_hex(16)
    try:
        key = _key(owner)
        samples = _samples(owner.data)
    except InputError as error:
        problem = problem or str(error)
    setups = sorted(path.name for path in (owner.state / "setups").glob("*") if not path.name.startswith("."))
    return {
        "key": key, "device": owner.device, "samples": samples, "trainer": "torch" if owner.trainer == "torch" else "onnx",
        "client": owner.client, "memory_bytes": owner.memory_bytes, "setups": setups, "versions": _versions(), "problem": problem[:2000],
    }  # fmt: skip


def _samples(data: Path) -> int:
    """Return the number of samples of a device; InputError if there are none."""
    try:
        if data.is_dir():
            count = sum(path.is_file() for folder in data.iterdir() if folder.is_dir() for path in folder.iterdir())
        else:
            with data.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                count = len(file["y"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise InputError(
            f"data: {data}: {error}; expected an .npz file with x and y, or a folder of images, in --node-config"
        ) from None
    if not count:
        raise InputError(f"data: {data}: no sample, expected at least one")
    return count


def _key(owner: Owner) -> str:
    """Return the number by which a server knows this device again, drawn when it is first asked; InputError if it cannot be stored."""
    path = owner.state / "key"
    try:
        owner.state.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write(path, secrets.token_hex(16).encode())
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise InputError(f"state: {error}; expected a folder that this SuperNode may write, in --node-config") from None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _store(owner: Owner, asked: Fields, blobs: Blobs) -> None:
    """Store the files of a setup, whole or not at all; ClientError or OSError if that fails."""
    digest, home = str(asked["setup"]), owner.state / "setups"
    home.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=home, prefix="."))
    try:
        for path, content in blobs.items():
            if not re.fullmatch(r"[0-9A-Za-z._/-]+", path) or ".." in PurePosixPath(path).parts or path.startswith("/"):
                raise InputError(f"{path!r}: expected the path of a file in the setup")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        bundle = read_bundle(folder)
        if bundle.manifest["manifest_sha256"] != digest:
            raise InputError(f"the setup is {bundle.manifest['manifest_sha256'][:16]}…, expected {digest[:16]}…")
        for path in bundle.manifest["files"]:
            bundle.content(path)
        if not (home / digest).exists():
            folder.rename(home / digest)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def trained(owner: Owner, job: Fields, blobs: Blobs, started_s: float) -> tuple[Fields, Blobs]:
    """Train a job, and return what the device says and its update. A failure is an answer, too."""
    folder = owner.state / "setups" / str(job["setup"])
    if not re.fullmatch(r"[0-9a-f]{64}", str(job["setup"])) or not folder.is_dir():
        return {"status": "no_setup", "ready_s": 0.0, "train_s": 0.0, "problem": "its training graphs are gone"}, {}
    status, problem, found, sent = "crashed", "", dict[str, Any](), dict[str, bytes]()
    began_s = time.perf_counter()
    try:
        bundle = read_bundle(folder)
        x, y = read_data(owner.data, bundle.manifest, labels=True)
        assert y is not None  # asked for
        by = _by_torch if owner.trainer == "torch" else _by_onnxruntime
        began_s = time.perf_counter()
        found, sent = by(owner, job, bundle, blobs["payload"], x, y)
        status = found.pop("status", "trained")
    except BudgetError as error:
        status, problem, found = "out_of_memory", str(error), {"steps": 1}
    except (ClientError, OSError) as error:
        status, problem = ("crashed" if isinstance(error, InputError | OSError) else "diverged"), str(error)
    ended_s = time.perf_counter()
    return {
        "status": status,
        "problem": problem[:2000],
        "ready_s": began_s - started_s,
        "train_s": ended_s - began_s,
        **found,
    }, sent


def _by_onnxruntime(owner: Owner, job: Fields, bundle: Bundle, payload: bytes, x: Samples, y: np.ndarray) -> tuple[Fields, Blobs]:
    label, round_ = str(job["tier"]), int(job["round"])
    how = Training(
        lr=job["lr"], seed=job["seed"], states=job["states"], max_seconds=0, memory_bytes=owner.memory_bytes or 0
    )  # fmt: skip
    bundle = bundle.at_round(round_, safetensors.numpy.load(payload))
    before = _state_before(owner, job)
    after = train(bundle, label, x, y, how, None if before is None else State.of_file(before))
    table = bundle.training(label)
    own = {name: value for name, value in after.tensors.items() if name in table["personal"] or name.startswith("memory:")}
    if own:
        _keep(owner, job, State(own, {**after.about, "upload": "[]"}).to_bytes())  # nothing of it is sent
    names = [*after.upload, *(name for name in after.tensors if name.startswith("control:"))]
    update = safetensors.numpy.save({name: np.ascontiguousarray(after.tensors[name], np.float32) for name in names})
    last, size = after.losses[-max(1, len(after.losses) // table["epochs"]) :], int(table["batch_size"])
    counts = [min(size, len(y) - start) for start in range(0, len(y), size)]  # of the batches of an epoch
    loss = sum(value * count for value, count in zip(last, counts, strict=True)) / len(y)
    labels = [int(one) for one in after.about["labels"].split(",")] if "labels" in after.about else None
    return {"steps": len(after.losses), "train_loss": loss, "labels": labels}, {"payload": update}


def _by_torch(owner: Owner, job: Fields, bundle: Bundle, payload: bytes, x: Samples, y: np.ndarray) -> tuple[Fields, Blobs]:
    from edgefl.contrib.flower.torch_device import train_in_torch

    before = _state_before(owner, job)
    files = {path: bundle.content(path) for path in bundle.manifest["files"]}
    found, kept, update = train_in_torch(
        files, job, payload, None if before is None else before.read_bytes(), (x, y), owner.memory_bytes
    )
    if kept:
        _keep(owner, job, kept)
    return found, {"payload": update} if update else {}


def _states(owner: Owner, job: Fields) -> list[tuple[int, Path]]:
    """Return round and file of the states that this device has kept of a run, the newest last."""
    if not re.fullmatch(r"[0-9a-f]{1,64}", str(job["run"])):
        raise InputError(f"run: got {job['run']!r}, expected hexadecimal digits")
    paths = (owner.state / "runs" / str(job["run"])).glob("round-*.safetensors")
    return sorted((int(path.stem.removeprefix("round-")), path) for path in paths)


def _state_before(owner: Owner, job: Fields) -> Path | None:
    """Return the state that the device kept in its last round before this one."""
    return next((path for round_, path in reversed(_states(owner, job)) if round_ < int(job["round"])), None)


def _keep(owner: Owner, job: Fields, content: bytes) -> None:
    """Keep a state after this round, and drop older ones and those of rounds that the server has undone."""
    path = owner.state / "runs" / str(job["run"]) / f"round-{int(job['round']):06d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, content)
    states = _states(owner, job)
    undone = [one for round_, one in states if round_ > int(job["round"])]
    for old in [*undone, *[one for round_, one in states if round_ <= int(job["round"])][:-KEPT]]:
        old.unlink(missing_ok=True)
