"""Training of a bundle's tier with onnxruntime, and the update of what was trained."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import safetensors.numpy
from edgefl_bundle import BudgetError, Bundle, ClientError, InputError, State, Table, Tensors
from edgefl_data import Samples, by_input, count_of, targets
from edgefl_keys import DeviceKey, content_sha256, signed
from edgefl_order import Order, parts
from edgefl_progress import Checkpoint, key_of
from edgefl_rounds import Freshness
from edgefl_steps import NotFiniteError, Objective, Steps, is_finite

OnStep = Callable[[int, float, float], None]
"""Called with the number of a step, its loss, and the seconds of all steps."""


@dataclass(frozen=True)
class Training:
    """Settings of training. None: the manifest's value. A limit of 0: no limit.

    Attributes:
        max_seconds: limit of all steps together.
        memory_bytes: limit of weights, optimizer state, a batch and onnxruntime's memory, without the interpreter and the data set. It
            cannot be changed later in the same process.
        seed: of every random draw. None: that of the state that is trained further, or 0.
        states: purpose (``train``, ``draw``, ``flip``) → state of NumPy's generator PCG64. A server that sends those of its simulation
            gets the simulation's batches. ``seed`` is then that of dropout only.
    """

    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    max_steps: int | None = None
    max_seconds: float | None = None
    memory_bytes: int | None = None
    threads: int = 1
    seed: int | None = None
    states: Mapping[str, Any] = field(default_factory=dict)

    def of(self, bundle: Bundle, label: str) -> Training:
        """Return these settings with None replaced by those of a tier; InputError if its entry is wrong, or for inference only."""
        table, budget = bundle.training(label), bundle.tier(label).get("budget") or {}
        own = {key: table[key] for key in ("epochs", "batch_size", "lr")}
        own |= {"max_seconds": budget.get("round_s"), "memory_bytes": budget.get("memory_bytes")}
        return replace(self, **{key: value for key, value in own.items() if getattr(self, key) is None})

    def steps(self, samples: int) -> int:
        """Return the number of steps if no limit of time ends training."""
        whole = int(self.epochs or 1) * math.ceil(samples / int(self.batch_size or samples))
        return whole if self.max_steps is None else min(whole, self.max_steps)


def train(
    bundle: Bundle,
    label: str,
    x: Samples,
    y: np.ndarray,
    how: Training = Training(),
    state: State | None = None,
    client: str = "",
    checkpoint: Checkpoint | None = None,
    on_step: OnStep | None = None,
) -> State:
    """Train a tier on prepared samples ``x`` (n, …), or name → samples of several inputs, and return the new state.

    ``y`` holds labels (n,), whole numbers, or the targets (n, …) of a regression.

    A ``state`` of an earlier round has the personal tensors; a state of the same bundle is trained further: with the same seed and
    samples, to the same bits as in one training, and otherwise :attr:`State.note` says what differs. Training stops before a step that
    would exceed the time limit; the finished steps count.

    With a ``checkpoint``, a training that was interrupted continues after the last step that was stored. ``on_step`` is called after each
    step with its number, its loss, and the seconds of all.

    Raises:
        BudgetError: a step needs more memory than allowed, or the first step more time than all steps may take.
        ClientError: training diverged: a step computed NaN or infinity (says which step).
        InputError: samples, labels or a file are wrong, or the state does not fit the tier.
    """
    samples = by_input(bundle.manifest, x)
    y = targets(bundle.manifest, y, count_of(samples))
    table = bundle.training(label)
    how = how.of(bundle, label)
    given = bundle.parameters(label)
    held = current_tensors(bundle, label, given, state)
    said = state.about if state is not None and _is_of(state, bundle) else {}
    kept = state.tensors if state is not None else {}
    objective = Objective(table, given, {name: kept.get(f"{'before' if said else 'memory'}:{name}") for name in table["trained"]})
    data = {**samples, "y": y}
    content = content_sha256(data)
    had = parts(said["order"], "--state") if said.get("order") else []
    seed = int(had[0] if had else 0) if how.seed is None else how.seed
    order, note = Order(len(y), int(how.batch_size or len(y)), seed, how.states), _what_differs(said, had, seed, content)
    if had and not note:
        order.move(said["order"], "--state")
    feeds = first_inputs(table, held, objective, float(how.lr or 0), np.isin(np.arange(bundle.manifest["classes"]), y))
    # Of dropout, if the tier has it.
    feeds["seed"] = seed if how.states else (seed * 40_503 + int(said.get("steps", 0))) % 2**23
    if said:
        continued = [name for name in _moving(table, given) if f"{_NOW}{name}" in kept and not (note and name == "seed")]
        feeds |= {name: kept[f"{_NOW}{name}"] for name in continued}
    first = {name: value[: how.batch_size] for name, value in data.items()}
    steps = Steps(bundle, table["graphs"], feeds, first, how.threads, how.memory_bytes)
    if checkpoint is not None:
        own = {key: value for key, value in vars(how).items() if key not in ("max_seconds", "memory_bytes", "threads")}
        facts = [bundle.manifest["manifest_sha256"], label, {**own, "seed": seed}, said, content]
        checkpoint = replace(checkpoint, key=key_of(facts, held))
    progress = checkpoint, on_step or (lambda number, loss, seconds: None)
    losses, seconds = _loop(steps, how, data, order, len(table["graphs"]), table.get("augment") == "flip", progress)
    travelled = float(said.get("lr_sum", 0))
    for _ in losses:  # one after the other: the same sum for two trainings as for one
        travelled += float(how.lr or 0)
    stays = [name for name in table["frozen"] if name in table["upload"] or name in table["personal"]]
    tensors = {**steps.tensors(), **{name: held[name] for name in stays}}
    tensors |= objective.finish(tensors, travelled)
    tensors |= {f"{_NOW}{name}": tensor for name, tensor in steps.changing().items() if name[:2] not in ("p.", "s.")}
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise ClientError(f"{name} holds NaN or infinity after {len(losses)} steps: {_DIVERGED}")
    about = {
        "format": "edgefl-state", "version": "1", "bundle": bundle.manifest["manifest_sha256"], "round": str(bundle.manifest["round"]),
        "tier": label, "samples": str(len(y)), "steps": str(int(said.get("steps", 0)) + len(losses)), "lr_sum": repr(travelled),
        "client": client or said.get("client") or secrets.token_hex(8), "upload": json.dumps(list(table["upload"])),
        "no_update": table["no_update"],
    }  # fmt: skip
    if not how.states:
        about |= {"order": order.place(), "data": content}
    if (fresh := Freshness.of(bundle)) is not None and fresh.expires is not None:
        about["deadline"] = fresh.expires
    if table.get("labels"):
        about["labels"] = ",".join(map(str, sorted({*map(int, filter(None, said.get("labels", "").split(","))), *y.tolist()})))
    return State(tensors, about, tuple(losses), seconds, note)


def _what_differs(said: Mapping[str, str], had: list[str], seed: int, content: str) -> str:
    """Return why the order of samples ``had`` of a state that says so does not continue; empty if it does, or if there is no state."""
    if not said:
        return ""
    of = "of an earlier version, without an order of samples" if not had else f"of seed {had[0]}, not {seed}"
    if had and had[0] == str(seed):
        of = "" if said.get("data") == content else "of other samples"
    return of and f"--state: {of}: training shuffles the samples anew"


def update(state: State, key: DeviceKey | None = None) -> bytes:
    """Return the update file of a state: only the tensors that the server aggregates. InputError if it cannot aggregate them.

    With the device's ``key``, the file is signed.
    """
    about = state.about
    if about["no_update"]:
        raise InputError(f"updates of this model cannot be aggregated outside of a simulation: {about['no_update']}")
    names = [*state.upload, *(name for name in state.tensors if name.startswith("control:"))]
    keys = ("version", "bundle", "round", "tier", "samples", "steps", "client", "labels", "deadline")
    metadata = {"format": "edgefl-update", **{name: about[name] for name in keys if name in about}}
    tensors = {name: np.ascontiguousarray(state.tensors[name], np.float32) for name in names}
    return safetensors.numpy.save(tensors, metadata=metadata if key is None else signed(metadata, tensors, key))


_DIVERGED = "training diverged; a smaller --lr may help"
_NOW = "now:"
"""Begins the names of what a state has of the optimizer and of dropout, so that a training continues."""


def _loop(
    steps: Steps, how: Training, data: Tensors, order: Order, graphs: int, flip: bool, progress: tuple[Checkpoint | None, OnStep]
) -> tuple[list[float], float]:
    """Run the steps, with ``flip`` on images of which half are mirrored; return the loss of each step, and the seconds of all."""
    checkpoint, on_step = progress
    losses = [] if checkpoint is None else checkpoint.restored(steps, order)
    restored = len(losses)
    limit_s, spent_s, started = how.max_seconds, 0.0, time.perf_counter()
    for taken in range(how.steps(len(data["y"])) - restored):
        # Stop if the next step would exceed the limit, should it take as long as the average step.
        if limit_s and taken and spent_s * (taken + 1) / taken > limit_s:
            break
        index = order.batch()
        batch = {name: value[index] for name, value in data.items()}
        if flip:
            mirrored = order.mirrored(len(index))
            batch["x"][mirrored] = batch["x"][mirrored][..., ::-1]
        try:
            loss = steps.step(batch, order.graph(graphs))
        except NotFiniteError as error:
            raise ClientError(f"step {len(losses) + 1}: {error}: {_DIVERGED}") from None
        spent_s = time.perf_counter() - started
        losses.append(loss)
        if checkpoint is not None:
            checkpoint.store(steps, order, losses)
        on_step(len(losses), loss, spent_s)
        if limit_s and len(losses) == 1 and spent_s > limit_s:
            raise BudgetError(f"the first step took {spent_s:.3g} s, {limit_s:.3g} s are allowed for all", spent_s, limit_s)
    return losses, spent_s


def _is_of(state: State, bundle: Bundle) -> bool:
    return bool(state.about.get("bundle") == bundle.manifest["manifest_sha256"])


def current_tensors(bundle: Bundle, label: str, given: Tensors, state: State | None) -> Tensors:
    """Return a tier's tensors: those of ``state`` if it is of this bundle, else the bundle's with personal ones of ``state``."""
    if state is None:
        return given
    table, about = bundle.training(label), state.about
    if about.get("tier") != label:
        raise InputError(f"--state: it is of tier {about.get('tier')}, expected {label}")
    if not _is_of(state, bundle) and int(about["round"]) >= bundle.manifest["round"]:
        had = f"it is of round {about['round']} of another bundle, this one is of round {bundle.manifest['round']}"
        raise InputError(f"--state: {had}; expected a state of an earlier round")
    names = given.keys() & state.tensors.keys() if _is_of(state, bundle) else table["personal"]
    shapes = {name: given[name].shape for name in names}
    shapes |= {f"{kind}:{name}": given[name].shape for kind in ("memory", "before") for name in table["trained"]}
    shapes |= {f"{_NOW}{name}": shape for name, shape in _moving(table, given).items()}
    for name, shape in shapes.items():
        found = state.tensors.get(name)
        if (found is None and name in names) or (found is not None and found.shape != shape):
            raise InputError(f"--state: {name}: missing or of another shape, expected {shape}: it is of another model")
    return {**given, **{name: state.tensors[name] for name in names}}


def _moving(table: Table, given: Tensors) -> dict[str, tuple[int, ...]]:
    """Return input of the graphs → shape of what the optimizer and dropout continue with."""
    return {f"{kind}.{name}": given[name].shape for kind in "mv" for name in table["trained"]} | {"t": (), "seed": ()}


def first_inputs(table: Table, tensors: Tensors, objective: Objective, lr: float, present: np.ndarray) -> dict[str, Any]:
    """Return the inputs of a tier's training graphs at the first step; ``present`` (classes,) bool: labels in the data."""
    found: dict[str, Any] = {**by_role(table, tensors), **objective.feeds(), "lr": lr, "beta": table["momentum"]}
    return {**found, "present": present} if table["present"] else found


def by_role(table: Table, tensors: Tensors) -> Tensors:
    """Return input → value: trained tensors are ``p.NAME``, statistics ``s.NAME``, frozen ones ``f.NAME``."""
    roles = {"p": "trained", "s": "statistics", "f": "frozen"}
    return {f"{prefix}.{name}": tensors[name] for prefix, role in roles.items() for name in table[role]}
