"""The command ``doctor``: Check this installation and this computer, and say what is missing."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import click

from edgefl.cli.console import busy, echo, print_json, show
from edgefl.cli.options import Command, json_option
from edgefl.errors import first_line
from edgefl.registry import views
from edgefl.report.tables import ALWAYS, Column, PlainTable, text
from edgefl.util.files import user_cache, user_config
from edgefl.util.machine import this_machine, usable_threads
from edgefl.util.units import human_bytes
from edgefl.version import __version__

_PACKAGE = "edgefl-sim"
_OLDEST = (3, 11)
_NEEDED = re.compile(r"^(?P<name>[\w.-]+)(\[[^]]*\])?[^;]*(;.*extra == ['\"](?P<extra>[\w-]+)['\"])?")
TORCH = 2, 13
"""The newest torch that the tests have run with."""
_MODULES = {"torch", "onnx", "onnxruntime", "numpy", "scipy", "cryptography"}
"""Packages with compiled parts, which may be installed and yet not load."""


@dataclass(frozen=True)
class Check:
    """One line of the result. ``broken``: edgefl needs it, and it does not work; ``missing``: something optional is not there."""

    what: str
    state: Literal["ok", "missing", "broken"]
    about: str


@click.command(cls=Command)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Check versions, optional packages, processor, memory, folders, and the runtimes of browser and cluster.

    The exit status is 1 if something that edgefl needs is broken. Missing packages are optional.

    \b
    edgefl doctor
    edgefl doctor --json
    """
    with busy("checking this computer"):
        checks = [*_python(), *_packages(), *_computer(), *_folders(), *views.load("browser")()]
    broken = [check.what for check in checks if check.state == "broken"]
    if as_json:
        print_json({"edgefl": __version__, "ok": not broken, "checks": [asdict(check) for check in checks]})
    else:
        columns = (
            text("what", "", "what"),
            Column("state", "", lambda row: row["state"], numeric=False, keep=ALWAYS),
            text("about", "", "about"),
        )
        if sys.stdout.isatty():
            show(PlainTable.of(columns, map(asdict, checks)))
        else:
            echo("\n".join(f"{check.what}: {check.state}: {check.about}" for check in checks))
        echo(f"broken: {', '.join(broken)}" if broken else "edgefl works here")
    ctx.exit(int(bool(broken)))


def _python() -> Iterator[Check]:
    able = sys.version_info >= _OLDEST
    yield Check("edgefl", "ok", __version__)
    wanted = "" if able else f", expected {'.'.join(map(str, _OLDEST))} or later"
    yield Check("python", "ok" if able else "broken", f"{platform.python_version()}{wanted}; {sys.executable}")


def _packages() -> Iterator[Check]:
    """Yield a check for each needed package, and one for each extra."""
    try:
        lines = metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        yield Check("packages", "missing", f"{_PACKAGE} is not installed by pip, so that its needs are not known")
        lines = sorted(_MODULES)
    extras: dict[str, list[str]] = {}
    for line in lines:
        match = _NEEDED.match(line)
        if match is None or match["name"] == _PACKAGE:
            continue
        if match["extra"] is None:
            yield _package(match["name"])
        elif match["extra"] not in ("dev", "test", "docs"):
            extras.setdefault(match["extra"], []).append(match["name"])
    for extra, names in sorted(extras.items()):
        versions = {name: _version(name) for name in names}
        lacking = [name for name, version in versions.items() if version is None]
        has = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
        about = f"pip install '{_PACKAGE}[{extra}]' installs {', '.join(lacking)}" if lacking else has
        yield Check(f"extra {extra}", "missing" if lacking else "ok", about)


def _package(name: str) -> Check:
    version = _version(name)
    if version is None:
        return Check(name, "broken", f"not installed; run pip install {name}")
    if name in _MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a package that does not load raises anything
            return Check(name, "broken", f"{version} does not load: {type(error).__name__}: {first_line(error)}")
    newer = name == "torch" and tuple(map(int, version.split(".")[:2])) > TORCH
    least, most = ".".join(map(str, TORCH)), f"{TORCH[0]}.{TORCH[1] + 1}"
    remedy = f"; the newest that the tests know is {least}: if counts of costs are refused, pip install 'torch<{most}'"
    return Check(name, "ok", f"{version}{remedy * newer}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _computer() -> Iterator[Check]:
    machine = this_machine()
    able = sys.modules.get("torch")
    capability = f"; torch uses {able.backends.cpu.get_cpu_capability()}" if able is not None else ""
    yield Check("processor", "ok", f"{machine.processor}, {usable_threads()} usable cores{capability}")
    yield Check("memory", "ok", f"{human_bytes(machine.free_bytes)} free of {human_bytes(machine.total_bytes)}")
    limits = [f"{name} {_limit(name)}" for name in ("memory.max", "cpu.max", "pids.max") if _limit(name) not in ("", "max")]
    yield Check("limits (cgroup)", "ok", ", ".join(limits) or "none")
    runtime = sys.modules.get("onnxruntime")
    if runtime is not None:
        yield Check("onnxruntime providers", "ok", ", ".join(runtime.get_available_providers()))


def _limit(name: str) -> str:
    try:
        value = Path("/sys/fs/cgroup", name).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return (
        human_bytes(int(value)) if name == "memory.max" and value.isdigit() else value.removesuffix(" 100000").replace("max ", "")
    )


def _folders() -> Iterator[Check]:
    """Yield a check for each folder that edgefl writes to: the first that exists of it and its parents must be writable."""
    folders = {
        "folder of runs": (Path("runs"), "broken"),
        "temporary folder": (Path(tempfile.gettempdir()), "broken"),
        "folder of keys": (user_config(), "missing"),
        "cache": (user_cache(), "missing"),
    }
    for what, (folder, otherwise) in folders.items():
        there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        able = there.is_dir() and os.access(there, os.W_OK)
        free = f"{human_bytes(shutil.disk_usage(there).free)} free" if able else "cannot be written"
        yield Check(what, "ok" if able else otherwise, f"{folder.absolute()}: {free}")  # type: ignore[arg-type]
