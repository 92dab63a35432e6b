"""Runs and trains the models of a bundle on a device: onnxruntime, NumPy and safetensors, nothing else.

    python edgefl_client.py infer  BUNDLE TIER DATA
    python edgefl_client.py train  BUNDLE TIER DATA --out my.state
    python edgefl_client.py update my.state --out my.update.safetensors

DATA is an .npz file with x and y, or a folder of images with one subfolder per class (that needs Pillow). x of uint8 are raw pixels,
which are prepared as the manifest says; x of float32 (or int64 token ids) is what the network takes. What a client keeps for itself
stays in its state: give it as --state when the next round's bundle is trained. Exit status: 0, 1 where training diverged, 2 on wrong
input, 3 where a budget cannot be met; nothing is written then.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # it may run inside a bundle, in which nothing else may appear

from edgefl_bundle import BudgetError, Bundle, ClientError, InputError, State, Table, Tensors, read_bundle, write
from edgefl_data import read_data
from edgefl_steps import Objective, Steps, dtypes, options, run

__all__ = ["BudgetError", "ClientError", "InputError", "Training", "infer", "read_bundle", "read_data", "train", "update"]


@dataclass(frozen=True)
class Training:
    """How to train. None takes the manifest's value; a limit of 0 is none.

    ``memory_bytes`` is what may be held: weights, optimizer state, a batch, and all that onnxruntime takes; the interpreter and the data
    set are not counted. It holds for the rest of the process.
    """

    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    max_steps: int | None = None
    max_seconds: float | None = None
    memory_bytes: int | None = None
    threads: int = 1
    seed: int = 0

    def of(self, entry: Table) -> Training:
        """Return it with the values of a tier's entry where it has none."""
        table, budget = entry["train"], entry.get("budget") or {}
        own = {key: table[key] for key in ("epochs", "batch_size", "lr")}
        own |= {"max_seconds": budget.get("round_s"), "memory_bytes": budget.get("memory_bytes")}
        return replace(self, **{key: value for key, value in own.items() if getattr(self, key) is None})

    def batches(self, samples: int) -> Iterator[np.ndarray]:
        """Yield the samples of each step, shuffled anew in every epoch; the last batch of an epoch may be partial."""
        shuffle = np.random.default_rng([self.seed, 0])
        size = int(self.batch_size or samples)
        for _ in range(int(self.epochs or 1)):
            order = shuffle.permutation(samples)
            yield from (order[start : start + size] for start in range(0, samples, size))


def infer(
    bundle: Bundle, label: str, x: np.ndarray, state: State | None = None, variant: str = "", threads: int = 1
) -> np.ndarray:
    """Return probabilities (n, classes) float32: of the tier as deployed, of a variant of it, or of what ``state`` was trained to."""
    entry = bundle.tier(label)
    path, weights, variants = entry["forward"], Tensors(), {one["kind"]: one["graph"] for one in entry.get("variants", ())}
    if variant:
        if variant not in variants:
            raise InputError(f"--variant: got {variant!r}, tier {label} has {', '.join(variants) or 'none'}")
        path = variants[variant]
    if state is not None:
        path = bundle.training(label)["predict"]
        weights = _by_role(bundle.training(label), _current(bundle, label, bundle.parameters(label), state))
    session = bundle.session(path, options(threads))
    kinds, batch = dtypes(session), int(entry.get("batch_size", 32))
    weights = {name: value for name, value in weights.items() if name in kinds}
    starts = range(0, len(x), batch)
    logits = np.concatenate([run(session, {**weights, "x": x[i : i + batch].astype(kinds["x"])})[0] for i in starts])
    powers = np.exp(logits.astype(np.float32) - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def train(
    bundle: Bundle,
    label: str,
    x: np.ndarray,
    y: np.ndarray,
    how: Training = Training(),
    state: State | None = None,
    client: str = "",
) -> State:
    """Train a tier on samples ``x``, ``y`` and return the new state.

    ``state`` of an earlier round gives what the client keeps for itself; one of this very bundle is trained further. When the time is
    nearly over training stops: what was done until then counts.

    Raises:
        BudgetError: a step needs more memory, or the first one more time, than there is for all.
        ClientError: the loss, or a weight, is no number any more.
    """
    table = bundle.training(label)
    how = how.of(bundle.tier(label))
    given = bundle.parameters(label)
    held = _current(bundle, label, given, state)
    said = state.about if state is not None and _is_of(state, bundle) else {}
    kept = state.tensors if state is not None else {}
    objective = Objective(table, given, {name: kept.get(f"{'before' if said else 'memory'}:{name}") for name in table["trained"]})
    feeds: dict[str, Any] = {**_by_role(table, held), **objective.feeds(), "lr": how.lr, "beta": table["momentum"]}
    if table["present"]:
        feeds["present"] = np.isin(np.arange(bundle.manifest["classes"]), y)
    first = slice(0, how.batch_size)
    steps = Steps(bundle, table["graphs"], feeds, x[first], y[first], how.threads, how.memory_bytes)
    losses, seconds = _loop(steps, how, x, y, len(table["graphs"]))
    travelled = float(said.get("lr_sum", 0)) + float(how.lr or 0) * len(losses)
    stays = [name for name in table["frozen"] if name in table["upload"] or name in table["personal"]]
    tensors = {**steps.tensors(), **{name: held[name] for name in stays}}
    tensors |= objective.finish(tensors, travelled)
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise ClientError(f"{name} holds NaN or infinity after {len(losses)} steps: {_DIVERGED}")
    about = {
        "format": "edgefl-state", "version": "1", "bundle": bundle.manifest["manifest_sha256"], "round": str(bundle.manifest["round"]),
        "tier": label, "samples": str(len(x)), "steps": str(int(said.get("steps", 0)) + len(losses)), "lr_sum": repr(travelled),
        "client": client or said.get("client") or secrets.token_hex(8), "upload": json.dumps(list(table["upload"])),
        "no_update": table["no_update"],
    }  # fmt: skip
    return State(tensors, about, tuple(losses), seconds)


def update(state: State) -> bytes:
    """Return the update file of a state: what the server aggregates, and nothing that stays on the device."""
    about = state.about
    if about["no_update"]:
        raise InputError(f"updates of this model cannot be aggregated outside of a simulation: {about['no_update']}")
    names = [*json.loads(about["upload"]), *(name for name in state.tensors if name.startswith("control:"))]
    metadata = {key: about[key] for key in ("version", "bundle", "round", "tier", "samples", "steps", "client")}
    tensors = {name: np.ascontiguousarray(state.tensors[name], np.float32) for name in names}
    return safetensors.numpy.save(tensors, metadata={"format": "edgefl-update", **metadata})


_DIVERGED = "training diverged; a smaller --lr may help"


def _loop(steps: Steps, how: Training, x: np.ndarray, y: np.ndarray, graphs: int) -> tuple[list[float], float]:
    """Return the loss of every step, and the seconds that they took."""
    draws = np.random.default_rng([how.seed, 1])
    losses: list[float] = []
    limit_s, spent_s, started = how.max_seconds, 0.0, time.perf_counter()
    for index in how.batches(len(x)):
        # As many steps as surely fit: the next one may take as long as those before it did on average.
        if len(losses) == how.max_steps or (limit_s and losses and spent_s * (len(losses) + 1) / len(losses) > limit_s):
            break
        loss = steps.step(x[index], y[index], int(draws.integers(graphs)))
        spent_s = time.perf_counter() - started
        losses.append(loss)
        if not math.isfinite(loss):
            raise ClientError(f"the loss is {loss} after {len(losses)} steps: {_DIVERGED}")
        if limit_s and len(losses) == 1 and spent_s > limit_s:
            raise BudgetError(f"the first step took {spent_s:.3g} s, {limit_s:.3g} s are allowed for all", spent_s, limit_s)
    return losses, spent_s


def _is_of(state: State, bundle: Bundle) -> bool:
    return bool(state.about.get("bundle") == bundle.manifest["manifest_sha256"])


def _current(bundle: Bundle, label: str, given: Tensors, state: State | None) -> Tensors:
    """Return a tier's tensors: the bundle's, over them all of a state of this bundle, or what the client keeps of an earlier one."""
    if state is None:
        return given
    table, about = bundle.training(label), state.about
    if about.get("tier") != label:
        raise InputError(f"--state: it is of tier {about.get('tier')}, expected {label}")
    if not _is_of(state, bundle) and int(about["round"]) >= bundle.manifest["round"]:
        had = f"it is of round {about['round']} of another bundle, this one is of round {bundle.manifest['round']}"
        raise InputError(f"--state: {had}; expected a state of an earlier round")
    names = given.keys() & state.tensors.keys() if _is_of(state, bundle) else table["personal"]
    for name in names:
        if name not in state.tensors or state.tensors[name].shape != given[name].shape:
            raise InputError(
                f"--state: {name}: missing or of another shape, expected {given[name].shape}: it is of another model"
            )
    return {**given, **{name: state.tensors[name] for name in names}}


def _by_role(table: Table, tensors: Tensors) -> Tensors:
    """Return tensors by the names of the graphs' inputs: trained ones under p., statistics under s., the others under f."""
    roles = {"p": "trained", "s": "statistics", "f": "frozen"}
    return {f"{prefix}.{name}": tensors[name] for prefix, role in roles.items() for name in table[role]}


def _infer(given: argparse.Namespace) -> None:
    bundle = read_bundle(given.bundle, given.key)
    x, y = read_data(given.data, bundle.manifest, labels=False)
    state = State.of_file(given.state) if given.state else None
    probabilities = infer(bundle, given.tier, x, state, given.variant, given.threads)
    best, names = probabilities.argmax(1), bundle.manifest["class_names"]
    for number, (row, chosen) in enumerate(zip(probabilities, best, strict=True)):
        sys.stdout.write(f"{number}\t{names[chosen]}\t{row[chosen]:.4f}\n")
    if y is not None:
        sys.stdout.write(f"accuracy: {float((best == y).mean()):.4f} of {len(y)} samples\n")


def _train(given: argparse.Namespace) -> None:
    _check_folder(given.out)
    bundle = read_bundle(given.bundle, given.key)
    x, y = read_data(given.data, bundle.manifest, labels=True)
    state = State.of_file(given.state) if given.state else None
    keys = ("epochs", "batch_size", "lr", "max_steps", "max_seconds", "memory_bytes", "threads", "seed")
    assert y is not None  # asked for
    after = train(bundle, given.tier, x, y, Training(**{key: getattr(given, key) for key in keys}), state, given.client or "")
    write(given.out, after.to_bytes())
    steps, part = len(after.losses), max(1, len(after.losses) // 4)
    first, last = (sum(some) / len(some) for some in (after.losses[:part], after.losses[-part:]))
    sys.stdout.write(
        f"{steps} steps in {after.seconds:.2f} s; loss {first:.4f} at first, {last:.4f} at the end\n{given.out}: written\n"
    )


def _update(given: argparse.Namespace) -> None:
    _check_folder(given.out)
    content = update(State.of_file(given.state))
    write(given.out, content)
    sys.stdout.write(f"{given.out}: written, {len(content):,} bytes\n")


def _check_folder(out: Path) -> None:
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"--out: {out} is a folder, or lies in none; expected the name of a file")


def _number(kind: type, least: float, most: float = math.inf) -> Any:
    def convert(text: str) -> Any:
        value = kind(text)
        if not least <= value <= most or value == math.inf:
            raise argparse.ArgumentTypeError(f"got {text}, expected {kind.__name__} of at least {least:g}")
        return value

    convert.__name__ = kind.__name__
    return convert


def _name(text: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z._-]{1,64}", text):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected 1 to 64 of 0-9 A-Z a-z . _ -")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("bundle", type=Path, help="folder that edgefl export wrote")
    shared.add_argument("tier", help="name of the tier, such as 0.5")
    shared.add_argument("data", type=Path, help=".npz with x and y, or folder of images")
    shared.add_argument("--state", type=Path, help="what an earlier training wrote")
    shared.add_argument("--key", type=Path, help="public key, Ed25519: the bundle's signature must be its owner's")
    shared.add_argument("--threads", type=_number(int, 1), default=1)
    one = commands.add_parser("infer", parents=[shared], help="classify samples: class and probability of each")
    one.add_argument("--variant", default="", help="a quantized graph of the tier, such as int8-static")
    one.set_defaults(run=_infer)
    one = commands.add_parser("train", parents=[shared], help="train on labelled samples and write the new state")
    one.add_argument("--out", type=Path, required=True, help="state to write")
    for name, kind, least in (("epochs", int, 1), ("batch-size", int, 1), ("max-steps", int, 1)):
        one.add_argument(f"--{name}", type=_number(kind, least))
    one.add_argument("--lr", type=_number(float, 1e-12))
    one.add_argument("--max-seconds", type=_number(float, 0), help="0 is no limit; default: the budget of the bundle's device")
    one.add_argument("--memory-bytes", type=_number(int, 0), help="0 is no limit; default: the budget of the bundle's device")
    one.add_argument("--seed", type=_number(int, 0), default=0)
    one.add_argument("--client", type=_name, help="name in the update; default: random")
    one.set_defaults(run=_train)
    one = commands.add_parser("update", help="write what the server aggregates")
    one.add_argument("state", type=Path, help="what train wrote")
    one.add_argument("--out", type=Path, required=True, help="update file to write")
    one.set_defaults(run=_update)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
        return 0
    except ClientError as error:
        sys.stderr.write(f"Error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted: nothing was written.\n")
        return 130
    except BrokenPipeError:  # whoever read the output has left: nothing is wrong, and nothing more can be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    sys.exit(main())
