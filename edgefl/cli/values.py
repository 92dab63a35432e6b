"""The values that a shell completes: names of the registries and profiles, choices, and folders of runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from edgefl.registry import Registry, methods, models

_PROFILES = {
    "profile": ("fleets", "devices"),
    "fleet": ("fleets", "devices"),
    "device": ("devices",),
    "like": ("devices",),
    "validate": ("devices",),
    "link": ("links",),
    "name": ("devices", "fleets"),
}
_RUN = ("summary.json", "config.toml", "comparison.toml", "manifest.json")


def completed(param: click.Parameter, incomplete: str, names: Registry | None, command: str = "") -> list[CompletionItem]:
    """Return the values of a parameter that begin with ``incomplete``, or what makes the shell complete files."""
    words = _words(param, names, command)
    before, comma, last = incomplete.rpartition(",") if param.name == "methods" else ("", "", incomplete)
    items = [CompletionItem(f"{before}{comma}{word}") for word in words if word.startswith(last)]
    return items or [CompletionItem(incomplete, type="file")]


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the folders of runs, comparisons and bundles that begin with ``incomplete``, those in ``runs/`` by default."""
    path = Path(incomplete)
    parents = {path.parent, path, *([Path("runs")] if not incomplete else [])}
    folders = {folder for parent in parents if parent.is_dir() for folder in parent.iterdir() if _is_run(folder)}
    texts = sorted(str(folder) for folder in folders if str(folder).startswith(incomplete))
    return [CompletionItem(text) for text in texts] or [CompletionItem(incomplete, type="dir")]


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in _RUN)


def _words(param: click.Parameter, names: Registry | None, command: str) -> Iterable[str]:
    if names is not None:
        return names.names()
    if param.name == "network":
        return models.names()
    metavar = param.metavar or ""
    if param.name in ("method", "methods") or (param.name == "name" and command == "methods"):
        return methods.names()
    if "|" in metavar and metavar.islower():
        return metavar.split("|")
    if param.name in _PROFILES and (command == "devices" or param.name != "name"):
        from edgefl.fleet.load import names as profiles

        return [name for kind in _PROFILES[param.name] for name in profiles(kind)]  # type: ignore[arg-type]
    return ()
