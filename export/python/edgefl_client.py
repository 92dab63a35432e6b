"""Runs and trains the models of a bundle on a device: onnxruntime, NumPy and safetensors, and cryptography for signatures.

    python edgefl_client.py infer  BUNDLE TIER DATA
    python edgefl_client.py train  BUNDLE TIER DATA --out my.state
    python edgefl_client.py update my.state --out my.update.safetensors
    python edgefl_client.py enroll --name my-device --out my-device.json

A bundle is code, so it must be signed: with the key given by --key, or with the one that this device pinned when it read its first signed
bundle. ``trust`` pins another key. A bundle that is older than the last one of its publisher and run is refused, and one that has expired.
After ``enroll``, updates are signed with the device's own key. Pins, rounds and key are in the folder ``edgefl`` of $XDG_CONFIG_HOME or
~/.config.

DATA is an .npz file with x and y, an .npy file of x with y.npy beside it, a CSV with a column y or label, or a folder of images with one
subfolder per class, which needs Pillow. uint8 and uint16 x are raw
pixels, prepared as the manifest describes, and so are floats if it has ``raw``. Other float32 x, or int64 token ids, are the network's
input. A network with several inputs takes arrays with their names instead of x. Personal tensors stay in the state: give it as --state
to train the bundle of the next round.

Exit status: 0, 1 if training diverged, 2 for wrong input, 3 if a budget cannot be met. Unless it is 0, no file is written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # a bundle, in which this file may be, must not get other files
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed: the next file that is opened would get its number
            setattr(sys, stream, Path(os.devnull).open("r+"))  # noqa: SIM115 - open as long as the process
    if missing := [name for name in ("numpy", "onnxruntime", "safetensors") if find_spec(name) is None]:
        sys.stderr.write(f"Error: {sys.executable} has no {', '.join(missing)}: pip install {' '.join(missing)}\n")
        sys.exit(2)

from edgefl_bundle import BudgetError, Bundle, ClientError, InputError, State, read_bundle, write
from edgefl_checks import printable
from edgefl_data import read_data
from edgefl_inference import infer
from edgefl_keys import DeviceKey, config_folder, enrolment, require_cryptography
from edgefl_limits import limited_memory
from edgefl_progress import Checkpoint
from edgefl_training import OnStep, Training, train, update
from edgefl_trust import pins, read_trusted, trust

__all__ = [
    "BudgetError",
    "Checkpoint",
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


def _infer(given: argparse.Namespace) -> None:
    bundle = _read(given)
    x, y = read_data(given.data, bundle.manifest, labels=False)
    state = State.of_file(given.state) if given.state else None
    with _limited(bundle):
        probabilities = infer(bundle, given.tier, x, state, given.variant, given.threads)
    if "target_shape" in bundle.manifest:
        for number, row in enumerate(probabilities):
            sys.stdout.write("\t".join([str(number), *(f"{value:.6g}" for value in row)]) + "\n")
        if y is not None and y.size == probabilities.size:
            error = float(((probabilities.reshape(y.shape) - y) ** 2).mean())
            sys.stdout.write(f"mean squared error: {error:.6g} of {len(y)} samples\n")
        return
    best, names = probabilities.argmax(1), bundle.manifest["class_names"]
    for number, (row, chosen) in enumerate(zip(probabilities, best, strict=True)):
        sys.stdout.write(f"{number}\t{printable(names[chosen])}\t{row[chosen]:.4f}\n")
    if y is not None:
        sys.stdout.write(f"accuracy: {float((best == y).mean()):.4f} of {len(y)} samples\n")


def _read(given: argparse.Namespace) -> Bundle:
    return replace(read_trusted(given.bundle, given.key, given.allow_unsigned, given.allow_older), timeout_s=given.timeout)


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
    settled = how.of(bundle, given.tier)
    planned = settled.steps(len(y))
    checkpoint = None if given.checkpoint is None else Checkpoint(given.checkpoint, given.checkpoint_every)
    with _limited(bundle):
        after = train(bundle, given.tier, x, y, how, state, given.client or "", checkpoint, _PROGRESS[given.progress](planned))
    write(given.out, after.to_bytes())
    if after.note:
        _say(after.note)
    if checkpoint is not None:
        checkpoint.path.unlink(missing_ok=True)
    steps, part = len(after.losses), max(1, len(after.losses) // 4)
    first, last = (sum(some) / len(some) for some in (after.losses[:part], after.losses[-part:]))
    early = ""
    if steps < planned:
        early = f"stopped after {steps} of {planned} steps: the limit is {settled.max_seconds:.3g} s (--max-seconds)\n"
    sys.stdout.write(
        f"{steps} steps in {after.seconds:.2f} s; loss {first:.4f} at first, {last:.4f} at the end\n{early}{given.out}: written\n"
    )


def _as_text(planned: int) -> OnStep:
    return lambda number, loss, seconds: _say(f"step {number} of {planned}: loss {loss:.4f}")


def _as_json(planned: int) -> OnStep:
    return lambda number, loss, seconds: _say(json.dumps({"step": number, "steps": planned, "loss": loss, "seconds": seconds}))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


_PROGRESS: dict[str, Callable[[int], OnStep | None]] = {"none": lambda planned: None, "text": _as_text, "json": _as_json}
"""What is said about each step, on standard error."""


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


class _Command(argparse.ArgumentParser):
    """The parser of one command, whose options are written out: ``--memory 60`` would be 60 bytes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Command)
    shared = _Command(add_help=False)
    shared.add_argument("bundle", type=Path, help="folder that edgefl export wrote")
    shared.add_argument("tier", help="name of the tier, such as 0.5")
    shared.add_argument(
        "data", type=Path, help=".npz with x and y, .npy with y.npy beside it, CSV with a column y, or folder of images"
    )
    shared.add_argument("--state", type=Path, help="state file of an earlier training [the bundle's weights]")
    publisher = shared.add_mutually_exclusive_group()
    publisher.add_argument("--key", type=Path, help="public key of the publisher, Ed25519 [the key that this device has pinned]")
    publisher.add_argument("--allow-unsigned", action="store_true", help="do not check who made the bundle; a bundle is code")
    shared.add_argument("--allow-older", action="store_true", help="accept an expired bundle, and one of a round before the last")
    shared.add_argument("--threads", type=_number(int, 1), default=1, help="threads that compute [1]")
    shared.add_argument(
        "--timeout", type=_number(float, 0.1), default=600.0, help="most seconds for a graph to load, or for a batch [600]"
    )
    command = commands.add_parser("infer", parents=[shared], help="classify samples: class and probability of each")
    command.add_argument("--variant", default="", help="a quantized graph of the tier, such as int8-static")
    command.set_defaults(run=_infer)
    command = commands.add_parser("train", parents=[shared], help="train on labelled samples and write the new state")
    command.add_argument("--out", type=Path, required=True, help="state to write")
    command.add_argument("--epochs", type=_number(int, 1), help="passes over the samples [the bundle's]")
    command.add_argument("--batch-size", type=_number(int, 1), help="samples of a step [the bundle's]")
    command.add_argument("--max-steps", type=_number(int, 1), help="most steps [no limit]")
    command.add_argument("--lr", type=_number(float, 1e-12), help="learning rate [the bundle's]")
    command.add_argument(
        "--max-seconds", type=_number(float, 0), help="most seconds of training; 0: no limit [the budget of the bundle's device]"
    )
    command.add_argument(
        "--memory-bytes", type=_number(int, 0), help="most memory of a step; 0: no limit [the budget of the bundle's device]"
    )
    command.add_argument("--seed", type=_number(int, 0), help="seed of every random draw [that of --state, or 0]")
    command.add_argument("--client", type=_name, help="name in the update [random]")
    command.add_argument("--progress", choices=_PROGRESS, default="none", help="a line for each step on standard error [none]")
    command.add_argument("--checkpoint", type=Path, help="file from which a training that was interrupted continues [none]")
    command.add_argument("--checkpoint-every", type=_number(int, 1), default=10, help="steps until it is written again [10]")
    command.set_defaults(run=_train)
    command = commands.add_parser("update", help="write the update for the server")
    command.add_argument("state", type=Path, help="state file that train wrote")
    command.add_argument("--out", type=Path, required=True, help="update file to write")
    signature = command.add_mutually_exclusive_group()
    signature.add_argument("--device-key", type=Path, help="key that signs it [this device's, if enroll has made one]")
    signature.add_argument("--unsigned", action="store_true", help="do not sign it")
    command.set_defaults(run=_update)
    command = commands.add_parser("enroll", help="make this device's key, and write the request by which a server enrols it")
    command.add_argument("--name", type=_name, required=True, help="name of this device for the server")
    command.add_argument("--out", type=Path, required=True, help="request to write, JSON")
    command.add_argument("--device-key", type=Path, help="file of the key [device.pem in edgefl's folder of this user]")
    command.set_defaults(run=_enroll)
    command = commands.add_parser("trust", help="trust the publisher of a bundle, from now on")
    command.add_argument("bundle", type=Path, help="folder that edgefl export wrote")
    command.set_defaults(run=_trust)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
        sys.stdout.flush()
        return 0
    except ClientError as error:
        sys.stderr.write(f"Error: {printable(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted: nothing was written.\n")
        return 130
    except OSError as error:
        if error.filename is None:  # what is left of the output would fail again at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):  # the reader of the output has closed it, which is no error
            return 0
        sys.stderr.write(f"Error: {printable(str(error.filename or 'standard output'))}: {error.strerror}\n")
        return InputError.exit_code


if __name__ == "__main__":
    sys.exit(main())
