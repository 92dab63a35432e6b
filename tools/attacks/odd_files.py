"""Pipes, devices, sockets, folders and huge files in the place of files: a reader says so, and neither waits nor fills the memory."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from attacks.harness import Bench, Case, Rng
from attacks.made import data, simulated, updates

RUN = ("config.toml", "summary.json", "rounds.jsonl", "hashes.json", "model.safetensors")
BUNDLE = ("manifest.json", "manifest.sig", "manifest.pub", "freshness.json", "0.5/forward.onnx", "0.5/parameters.safetensors")


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    client = bench.client

    def case(rng: Rng, folder: Path) -> str:
        here = folder / "here"
        here.mkdir(parents=True)
        shutil.copytree(simulated(bench), here / "run")
        shutil.copytree(updates(bench), here / "updates")
        kind, of_run = str(rng.choice(list(KINDS))), rng.random() < 0.5
        name = str(rng.choice(RUN if of_run else BUNDLE))
        path = here / "run" / name if of_run else here / "run" / "bundle" / name
        path.unlink()
        KINDS[kind](path)
        commands = (
            *(("report", "run"), ("verify", "run"), ("simulate", "--out", "run", "--resume", "--rounds", 4)),
            *(("export", "run", "--out", "out"), ("fed-round", "run/bundle", "--updates", "updates", "--out", "out")),
        )
        which = int(rng.integers(len(commands) + 1))
        if which < len(commands):
            ended = bench.edgefl.run(*commands[which], cwd=here)
        else:
            ended = client.run("infer", "run/bundle", "0.5", data(bench), cwd=here, XDG_CONFIG_HOME=str(here / "config"))
        ended.check((0, 1, 2))
        return f"{kind} for {'a run' if of_run else 'a bundle'}: {'refused' if ended.status else 'not read'}"

    return case


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        before = Path.cwd()
        os.chdir(path.parent)  # the name of a socket is short
        one.bind(path.name)
        os.chdir(before)


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": _pipe, "a device": _zero, "a huge file": _huge, "a socket": _socket, "a folder": _folder, "a loop of links": _loop,
}  # fmt: skip
"""What takes the place of a file."""
