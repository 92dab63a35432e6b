"""A hash of what decides the figures of a run: its settings, and the source of its method, network, data and training steps.

If the hash of today's checkout differs, a probe (:mod:`papers.probe`) decides whether the result is stale. The hash is made of definitions,
without comments, docstrings, imports and formatting, whatever file they stand in. Not part of it: how clients and server exchange,
schedule, meter and speed up this work (``edgefl.server``, ``edgefl.wire``, ``edgefl.client.fast``, engines). Golden and parity tests hold
these rooms to the same bits. Under the conditions of a fleet, its profile, costs, clock and schedule decide too.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import edgefl
from edgefl.config import RunConfig
from edgefl.config.group import group_keys
from edgefl.contrib.attacks.keys import AttackKeys
from edgefl.fleet.load import load_fleet
from edgefl.registry import adversaries, codecs, datasets, defences, methods, models, objectives, server_optimizers
from edgefl.util.files import sha256
from edgefl.util.spec import called, named

PACKAGE = Path(edgefl.__file__).parent
FOLLOWED = (
    "data",
    "methods",
    "models",
    "factor",
    "client.objective",
    "client.objectives",
    "client.conduct",
    "client.clipping",
    "client.stage",
    "client.stages",
    "contrib.attacks",
    "contrib.privacy",
    "contrib.secagg",
    "server.coordinates",
    "server.defence",
    "server.optimizer",
    "server.stages",
    "wire.codecs",
    "util.exact_sum",
    "rng",
)
"""Rooms and modules whose imports are followed from the roots of a run."""
STEPS = (
    "edgefl.client.training",
    "edgefl.client.optimizer",
    "edgefl.client.loop",
    "edgefl.client.outcome",
    "edgefl.data.shards",
    "edgefl.client.evaluate",
)
"""Roots of every run: what a training step does, on which samples, and how accuracy is measured."""
FLEET = ("server.assign", "server.assignment", "server.forecast", "server.schedule")
"""Modules that, with the rooms ``fleet`` and ``cost``, decide a run under the conditions of a fleet."""
DEFAULTS = (
    "momentum",
    "weight_decay",
    "optimizer",
    "objective",
    "objective_strength",
    "codec",
    "server_optimizer",
    "server_lr",
    "mode",
)
"""Defaults of a configuration that decide a result, hashed with the settings although a table may not name them."""


def inputs(settings: dict[str, object]) -> str:
    """Return the hash of a run with ``settings``: 16 hexadecimal digits, equal on every computer."""
    config = RunConfig.of(settings)
    values = {**config.model_dump(mode="json", include=set(DEFAULTS)), **config.model_dump(mode="json", exclude_unset=True)}
    if config.conditions != "ideal" and "conditions" in settings:
        values["fleet"] = load_fleet(config.profile).model_dump(mode="json")
    source = _source_of(tuple(sorted(roots(config))))
    return sha256(f"{json.dumps(values, sort_keys=True)}\n{source}".encode())[:16]


def of_this_code(settings: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Whether a stored run was made with ``settings`` by this code, or by other code whose probe gave the same figures."""
    return inputs(dict(settings)) in (entry.get("inputs"), *entry.get("confirmed", ()))


def roots(config: RunConfig) -> Iterator[str]:
    """Yield the modules that a run begins with."""
    yield from STEPS
    if config.conditions != "ideal" and "conditions" in config.model_fields_set:
        yield from (f"edgefl.{name}" for name in FLEET)
        yield from (f"edgefl.{room}.{path.stem}" for room in ("fleet", "cost") for path in (PACKAGE / room).glob("*.py"))
    yield methods.load(config.method).__module__
    if config.model is not None:
        yield models.load(config.model).__module__
    for name in config.dataset.split("+"):
        yield datasets.load(name).__module__
    yield objectives.load(config.objective).__module__
    yield server_optimizers.load(called(config.server_optimizer)[0]).__module__
    yield codecs.load(config.codec).__module__
    if (spec := group_keys(config, AttackKeys).adversary) is not None:
        yield adversaries.load(named(spec)[0]).__module__
    if config.clip_norm is not None or config.defence != "none":
        yield "edgefl.server.chain"
        yield defences.load(config.defence).__module__


@functools.cache
def _source_of(roots: tuple[str, ...]) -> str:
    """Return the hash of all definitions in the modules of ``roots``."""
    found = {definition for module in modules(roots) if (path := _path(module)) for definition in _parsed(path)[1]}
    return sha256("\n".join(sorted(found)).encode())


def modules(roots: tuple[str, ...]) -> set[str]:
    """Return ``roots`` and the followed modules among their imports, and among the imports of those."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in seen and (path := _path(name)) is not None:
            seen.add(name)
            waiting += [module for module in _parsed(path)[0] if _followed(module)]
    return seen


def _followed(module: str) -> bool:
    inner = module.removeprefix("edgefl.")
    return inner != module and any(inner == room or inner.startswith(f"{room}.") for room in FOLLOWED)


def _path(module: str) -> Path | None:
    """Return the file of a module of edgefl; None for names inside modules, and for everything else."""
    if module.split(".")[0] != "edgefl":
        return None
    base = PACKAGE.joinpath(*module.split(".")[1:])
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@functools.cache
def _parsed(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the modules that a file imports, and its definitions as plain text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    kept = (node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom)) and not _text(node))
    return frozenset(imported), frozenset(ast.unparse(_plain(node)) for node in kept)


def _text(node: ast.stmt) -> bool:
    """Whether a statement is a string alone: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _plain(node: ast.stmt) -> ast.stmt:
    """Return a statement without the docstrings in it."""
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list) and any(map(_text, body)):
            inner.body = [one for one in body if not _text(one)] or [ast.Pass()]  # type: ignore[attr-defined]  # of nodes with a body
    return node
