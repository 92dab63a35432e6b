"""Runs and trains the models of a bundle on a device: onnxruntime, NumPy and safetensors, and cryptography for signatures.

    python edgefl_client.py infer  BUNDLE TIER DATA
    python edgefl_client.py train  BUNDLE TIER DATA --out my.state
    python edgefl_client.py update my.state --out my.update.safetensors
    python edgefl_client.py enroll --name my-device --out my-device.json

A bundle is code: it must be signed, by the owner of --key, or else of the key that this device pinned when it met its first signed bundle.
``trust`` pins another. After ``enroll``, updates are signed with the device's own key. Both are in ``edgefl`` in $XDG_CONFIG_HOME or
~/.config.

DATA is an .npz file with x and y, or a folder of images with one subfolder per class (which needs Pillow). uint8 x are raw pixels, which
are prepared as the manifest describes; float32 x (or int64 token ids) are the network's input. Of a network with several inputs, the arrays
are called as these instead of x. Personal tensors stay in the state:
give it as --state when you train the bundle of the next round. Exit status: 0, 1 if training diverged, 2 for wrong input, 3 if a budget
cannot be met. Unless it is 0, no file is written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # a bundle, in which this file may be, must not get other files

from edgefl_bundle import BudgetError, Bundle, ClientError, InputError, State, Table, Tensors, by_input, read_bundle, write
from edgefl_checks import printable
from edgefl_data import Samples, read_data
from edgefl_keys import DeviceKey, config_folder, enrolment, require_cryptography, signed
from edgefl_limits import limited_memory, watched
from edgefl_steps import Objective, Steps, dtypes, options, run
from edgefl_trust import pins, read_trusted, trust

__all__ = [
    "BudgetError",
    "ClientError",
    "InputError",
    "Training",
    "infer",
    "read_bundle",
    "read_data",
    "read_trusted",
    "train",
    "update",
]


@dataclass(frozen=True)
class Training:
    """Settings of training. None: the manifest's value. A limit of 0: no limit.

    ``max_seconds`` limits all steps together. ``memory_bytes`` limits weights, optimizer state, a batch and onnxruntime's memory, but not
    the interpreter and the data set; it cannot be changed later in the same process.

    ``states`` maps a purpose (order of the samples, choice of a graph, mirrored samples) to a state of NumPy's generator PCG64. A server
    that sends those of its simulation gets its batches. ``seed`` is then that of dropout only.
    """

    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    max_steps: int | None = None
    max_seconds: float | None = None
    memory_bytes: int | None = None
    threads: int = 1
    seed: int = 0
    states: Mapping[str, Any] = field(default_factory=dict)

    def of(self, entry: Table) -> Training:
        """Return these settings with None replaced by the values of a tier's ``entry``."""
        table, budget = entry["train"], entry.get("budget") or {}
        own = {key: table[key] for key in ("epochs", "batch_size", "lr")}
        own |= {"max_seconds": budget.get("round_s"), "memory_bytes": budget.get("memory_bytes")}
        return replace(self, **{key: value for key, value in own.items() if getattr(self, key) is None})

    def batches(self, samples: int) -> Iterator[np.ndarray]:
        """Yield the indices of the samples of each step, shuffled in every epoch; the last batch of an epoch may be smaller."""
        shuffle = self.generator("train")
        size = int(self.batch_size or samples)
        for _ in range(int(self.epochs or 1)):
            order = shuffle.permutation(samples)
            yield from (order[start : start + size] for start in range(0, samples, size))

    def generator(self, purpose: str) -> np.random.Generator:
        """Return the generator of a purpose: "train", "draw" or "flip"."""
        if not self.states:
            return np.random.default_rng([self.seed, ("train", "draw", "flip").index(purpose)])
        bits = np.random.PCG64()
        try:
            bits.state = self.states[purpose]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"states: {purpose}: got no state of the generator PCG64 ({error!r})") from None
        return np.random.Generator(bits)


def infer(bundle: Bundle, label: str, x: Samples, state: State | None = None, variant: str = "", threads: int = 1) -> np.ndarray:
    """Return probabilities (n, classes) float32 for samples ``x`` (n, …), by the tier's graph, a variant, or the weights of ``state``.

    Of a regression they are its outputs. Samples of several inputs are name → (n, …).
    """
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
    given = {name: value for name, value in by_input(bundle.manifest, x).items() if name in kinds}
    found = []
    for start in range(0, max(map(len, given.values())), batch):
        part = {name: value[start : start + batch].astype(kinds[name]) for name, value in given.items()}
        with watched(bundle.timeout_s, "a batch"):
            found.append(run(session, {**weights, **part})[0])
    logits = np.concatenate(found)
    if not (finite := np.isfinite(logits)).all():
        spoiled = "the weights are spoiled, or the samples are no samples of this network"
        raise ClientError(f"{path}: the graph computes {logits[~finite].flat[0]}, expected finite outputs: {spoiled}")
    if "target_shape" in bundle.manifest:
        return logits
    powers = np.exp(logits.astype(np.float32) - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def train(
    bundle: Bundle,
    label: str,
    x: Samples,
    y: np.ndarray,
    how: Training = Training(),
    state: State | None = None,
    client: str = "",
) -> State:
    """Train a tier on samples ``x`` (n, …), or name → samples of several inputs, and labels ``y`` (n,) int64, and return the new state.

    A ``state`` of an earlier round has the personal tensors; a state of the same bundle is trained further. Training stops before a step
    that would exceed the time limit; the finished steps count.

    Raises:
        BudgetError: a step needs more memory than allowed, or the first step more time than all steps may take.
        ClientError: training diverged (NaN or infinity). InputError: the state does not fit the tier, or a file is wrong.
    """
    table = bundle.training(label)
    how = how.of(bundle.tier(label))
    given = bundle.parameters(label)
    held = _current(bundle, label, given, state)
    said = state.about if state is not None and _is_of(state, bundle) else {}
    kept = state.tensors if state is not None else {}
    objective = Objective(table, given, {name: kept.get(f"{'before' if said else 'memory'}:{name}") for name in table["trained"]})
    feeds = first_inputs(table, held, objective, float(how.lr or 0), np.isin(np.arange(bundle.manifest["classes"]), y))
    # Of dropout, if the tier has it.
    feeds["seed"] = how.seed if how.states else (how.seed * 40_503 + int(said.get("steps", 0))) % 2**23
    data = {**by_input(bundle.manifest, x), "y": y}
    first = {name: value[: how.batch_size] for name, value in data.items()}
    steps = Steps(bundle, table["graphs"], feeds, first, how.threads, how.memory_bytes)
    losses, seconds = _loop(steps, how, data, len(table["graphs"]), table.get("augment") == "flip")
    travelled = float(said.get("lr_sum", 0)) + float(how.lr or 0) * len(losses)
    stays = [name for name in table["frozen"] if name in table["upload"] or name in table["personal"]]
    tensors = {**steps.tensors(), **{name: held[name] for name in stays}}
    tensors |= objective.finish(tensors, travelled)
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise ClientError(f"{name} holds NaN or infinity after {len(losses)} steps: {_DIVERGED}")
    about = {
        "format": "edgefl-state", "version": "1", "bundle": bundle.manifest["manifest_sha256"], "round": str(bundle.manifest["round"]),
        "tier": label, "samples": str(len(y)), "steps": str(int(said.get("steps", 0)) + len(losses)), "lr_sum": repr(travelled),
        "client": client or said.get("client") or secrets.token_hex(8), "upload": json.dumps(list(table["upload"])),
        "no_update": table["no_update"],
    }  # fmt: skip
    if table.get("labels"):
        about["labels"] = ",".join(map(str, sorted({*map(int, filter(None, said.get("labels", "").split(","))), *y.tolist()})))
    return State(tensors, about, tuple(losses), seconds)


def update(state: State, key: DeviceKey | None = None) -> bytes:
    """Return the update file of a state: only the tensors that the server aggregates. InputError if it cannot aggregate them.

    With the device's ``key``, the file is signed.
    """
    about = state.about
    if about["no_update"]:
        raise InputError(f"updates of this model cannot be aggregated outside of a simulation: {about['no_update']}")
    names = [*json.loads(about["upload"]), *(name for name in state.tensors if name.startswith("control:"))]
    keys = ("version", "bundle", "round", "tier", "samples", "steps", "client", "labels")
    metadata = {"format": "edgefl-update", **{name: about[name] for name in keys if name in about}}
    tensors = {name: np.ascontiguousarray(state.tensors[name], np.float32) for name in names}
    return safetensors.numpy.save(tensors, metadata=metadata if key is None else signed(metadata, tensors, key))


_DIVERGED = "training diverged; a smaller --lr may help"


def _loop(steps: Steps, how: Training, data: Tensors, graphs: int, flip: bool) -> tuple[list[float], float]:
    """Run the steps, with ``flip`` on images of which half are mirrored; return the loss of each step, and the seconds of all."""
    draws, flips = how.generator("draw"), how.generator("flip")
    losses: list[float] = []
    limit_s, spent_s, started = how.max_seconds, 0.0, time.perf_counter()
    for index in how.batches(len(data["y"])):
        # Stop if the next step would exceed the limit, should it take as long as the average step.
        if len(losses) == how.max_steps or (limit_s and losses and spent_s * (len(losses) + 1) / len(losses) > limit_s):
            break
        batch = {name: value[index] for name, value in data.items()}
        if flip:
            mirrored = flips.integers(2, size=len(index)) == 1
            batch["x"][mirrored] = batch["x"][mirrored][..., ::-1]
        loss = steps.step(batch, min(int(draws.random() * graphs), graphs - 1))
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
    for name in names:
        if name not in state.tensors or state.tensors[name].shape != given[name].shape:
            raise InputError(
                f"--state: {name}: missing or of another shape, expected {given[name].shape}: it is of another model"
            )
    return {**given, **{name: state.tensors[name] for name in names}}


def first_inputs(table: Table, tensors: Tensors, objective: Objective, lr: float, present: np.ndarray) -> dict[str, Any]:
    """Return the inputs of a tier's training graphs at the first step; ``present`` (classes,) bool: labels in the data."""
    found: dict[str, Any] = {**_by_role(table, tensors), **objective.feeds(), "lr": lr, "beta": table["momentum"]}
    return {**found, "present": present} if table["present"] else found


def _by_role(table: Table, tensors: Tensors) -> Tensors:
    """Return input → value: trained tensors are ``p.NAME``, statistics ``s.NAME``, frozen ones ``f.NAME``."""
    roles = {"p": "trained", "s": "statistics", "f": "frozen"}
    return {f"{prefix}.{name}": tensors[name] for prefix, role in roles.items() for name in table[role]}


def _infer(given: argparse.Namespace) -> None:
    bundle = _read(given)
    x, y = read_data(given.data, bundle.manifest, labels=False)
    state = State.of_file(given.state) if given.state else None
    with _limited(bundle):
        probabilities = infer(bundle, given.tier, x, state, given.variant, given.threads)
    if "target_shape" in bundle.manifest:
        for number, row in enumerate(probabilities):
            sys.stdout.write("\t".join([str(number), *(f"{value:.6g}" for value in row)]) + "\n")
        return
    best, names = probabilities.argmax(1), bundle.manifest["class_names"]
    for number, (row, chosen) in enumerate(zip(probabilities, best, strict=True)):
        sys.stdout.write(f"{number}\t{printable(names[chosen])}\t{row[chosen]:.4f}\n")
    if y is not None:
        sys.stdout.write(f"accuracy: {float((best == y).mean()):.4f} of {len(y)} samples\n")


def _read(given: argparse.Namespace) -> Bundle:
    return replace(read_trusted(given.bundle, given.key, given.allow_unsigned), timeout_s=given.timeout)


def _limited(bundle: Bundle) -> contextlib.AbstractContextManager[None]:
    """Limit the memory that this process takes for graphs, which may be anybody's."""
    return limited_memory(sum(entry["bytes"] for entry in bundle.manifest["files"].values()))


def _train(given: argparse.Namespace) -> None:
    _check_folder(given.out)
    bundle = _read(given)
    x, y = read_data(given.data, bundle.manifest, labels=True)
    state = State.of_file(given.state) if given.state else None
    keys = ("epochs", "batch_size", "lr", "max_steps", "max_seconds", "memory_bytes", "threads", "seed")
    assert y is not None  # asked for
    how = Training(**{key: getattr(given, key) for key in keys})
    with _limited(bundle):
        after = train(bundle, given.tier, x, y, how, state, given.client or "")
    write(given.out, after.to_bytes())
    steps, part = len(after.losses), max(1, len(after.losses) // 4)
    first, last = (sum(some) / len(some) for some in (after.losses[:part], after.losses[-part:]))
    sys.stdout.write(
        f"{steps} steps in {after.seconds:.2f} s; loss {first:.4f} at first, {last:.4f} at the end\n{given.out}: written\n"
    )


def _update(given: argparse.Namespace) -> None:
    _check_folder(given.out)
    key = _device_key(given)
    content = update(State.of_file(given.state), key)
    write(given.out, content)
    of = "not signed" if key is None else f"signed by {key.public}"
    sys.stdout.write(f"{given.out}: written, {len(content):,} bytes, {of}\n")


def _device_key(given: argparse.Namespace) -> DeviceKey | None:
    """Return the key that signs updates: the one given, or this device's own if it has one."""
    path = given.device_key or _own_key()
    if given.unsigned or (given.device_key is None and not path.exists()):
        return None
    require_cryptography("signing the update", "--unsigned writes it without a signature")
    return DeviceKey.of_file(path)


def _own_key() -> Path:
    return config_folder() / "device.pem"


def _enroll(given: argparse.Namespace) -> None:
    _check_folder(given.out)
    require_cryptography("a key for this device", "then enroll makes one")
    path = given.device_key or _own_key()
    key = DeviceKey.made(path)
    write(given.out, enrolment(given.name, key))
    sys.stdout.write(f"{path}: the key of this device, which signs its updates; its public half: {key.public}\n")
    sys.stdout.write(f"{given.out}: written, for the server: edgefl enroll {given.out.name} --keys KEYS\n")


def _trust(given: argparse.Namespace) -> None:
    sys.stdout.write(f"{given.bundle}: signed by {trust(given.bundle)}, which this device trusts from now on ({pins()})\n")


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
    publisher = shared.add_mutually_exclusive_group()
    publisher.add_argument("--key", type=Path, help="public key of the publisher, Ed25519 [the key that this device has pinned]")
    publisher.add_argument("--allow-unsigned", action="store_true", help="do not check who made the bundle, which is code")
    shared.add_argument("--threads", type=_number(int, 1), default=1)
    shared.add_argument(
        "--timeout", type=_number(float, 0.1), default=600.0, help="most seconds for a graph to load, or for a batch [600]"
    )
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
    signature = one.add_mutually_exclusive_group()
    signature.add_argument("--device-key", type=Path, help="key that signs it [this device's, if enroll has made one]")
    signature.add_argument("--unsigned", action="store_true", help="do not sign it")
    one.set_defaults(run=_update)
    one = commands.add_parser("enroll", help="make this device's key, and write the request by which a server enrols it")
    one.add_argument("--name", type=_name, required=True, help="name of this device for the server")
    one.add_argument("--out", type=Path, required=True, help="request to write, JSON")
    one.add_argument("--device-key", type=Path, help="file of the key [device.pem in edgefl's folder of this user]")
    one.set_defaults(run=_enroll)
    one = commands.add_parser("trust", help="trust the publisher of a bundle, from now on")
    one.add_argument("bundle", type=Path, help="folder that edgefl export wrote")
    one.set_defaults(run=_trust)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
        return 0
    except ClientError as error:
        sys.stderr.write(f"Error: {printable(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted: nothing was written.\n")
        return 130
    except BrokenPipeError:  # the reader of the output has closed it, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    sys.exit(main())
