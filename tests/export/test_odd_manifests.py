"""Every value of a manifest that a client reads, replaced by odd ones: one message or a result, and the same from both clients."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from handmade import Regression, samples, seal
from python_client import called
from ts_client import batch

GONE = object()
ODD = [
    GONE,
    None,
    True,
    -1,
    0,
    1.5,
    10**400,
    float("nan"),
    float("inf"),
    "x",
    "\ud800",
    "\u202e\x1b[2J",
    "__proto__",
    [],
    {},
    [[]],
    [{}],
]
TOP = (
    "round",
    "classes",
    "class_names",
    "input_shape",
    "input_dtype",
    "inputs",
    "target_shape",
    "preprocessing",
    "files",
    "tiers",
)
PREPARED = ("mean", "std", "scale", "raw", "alphabet", "words")
TIER = ("label", "forward", "variants", "budget", "batch_size", "train")
BUDGET = ("memory_bytes", "round_s")
TRAIN = (
    "graphs", "predict", "parameters", "optimizer", "lr", "momentum", "batch_size", "epochs", "trained", "statistics", "frozen",
    "personal", "upload", "objective", "present", "no_update", "labels", "augment",
)  # fmt: skip
PLACES = [
    *((key,) for key in TOP),
    *(("preprocessing", key) for key in PREPARED),
    *(("tiers", 0, key) for key in TIER),
    *(("tiers", 0, "budget", key) for key in BUDGET),
    *(("tiers", 0, "train", key) for key in TRAIN),
    *(("tiers", 0, "train", "objective", key) for key in ("name", "strength")),
    ("tiers", 0, "train", "upload", "other"),
    ("files", "0.5/train.onnx", "bytes"),
    ("files", "0.5/train.onnx", "sha256"),
]


def replaced(folder: Path, place: tuple, value: object) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    *parents, key = place
    inside = manifest
    for parent in parents:
        inside = inside[parent]
    if value is GONE:
        inside.pop(key, None)
    else:
        inside[key] = value
    seal(folder, manifest)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[list[object]]:
    top = tmp_path_factory.mktemp("odd")
    sound = Regression().write(top / "sound")
    x, y = samples(10)
    np.savez(top / "prepared.npz", x=x, y=y)
    np.savez(top / "raw.npz", x=(np.abs(x) * 40).astype(np.uint8), y=y)
    found: list[list[object]] = []
    for place in PLACES:
        for odd in ODD:
            folder = top / str(len(found))
            shutil.copytree(sound, folder)
            replaced(folder, place, odd)
            data = top / ("raw.npz" if place[0] == "preprocessing" else "prepared.npz")
            shared = [folder, "0.5", data, "--allow-unsigned"]
            infers = place[0] in ("preprocessing", "inputs") or place[-1] in ("variants", "batch_size", "forward")
            found.append(["infer", *shared] if infers else ["train", *shared, "--out", folder / "state"])
    return found


def test_the_python_client_says_what_is_wrong(commands, capsys):
    for command in commands:
        status, output, errors = called(capsys, *command)
        told(command, status, output, errors)
        if status == 0 and command[0] == "train":
            status, output, errors = called(capsys, "update", command[-1], "--out", command[1] / "update")
            told(command, status, output, errors)


def test_the_typescript_client_refuses_the_same(ts, commands, capsys):
    found = batch(ts, commands)
    for command, (status, output, errors) in zip(commands, found, strict=True):
        told(command, status, output, errors)
        assert bool(status) == bool(called(capsys, *command)[0]), (command, errors)


def told(command: list[object], status: int, output: str, errors: str) -> None:
    manifest = (command[1] / "manifest.json").read_text()
    assert status in (0, 1, 2, 3), manifest
    assert not status or errors.startswith("Error: "), manifest
    assert all(character.isprintable() or character in "\n\t" for character in output + errors), manifest
