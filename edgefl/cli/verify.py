"""The command ``verify``: Check the hashes, signature, graphs and outputs of a bundle, or the files of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgefl.cli.console import echo, print_json
from edgefl.cli.options import Command, json_option, option
from edgefl.cli.param_types import PATH, Amount
from edgefl.cli.values import runs

if TYPE_CHECKING:
    from edgefl.bundle.verify import VerifyReport


@click.command(cls=Command)
@click.argument("folder", type=PATH, shell_complete=runs)
@option("--key", type=PATH, metavar="KEY", help="Require a signature by the owner of this Ed25519 public key, a PEM file.")
@option(
    "--memory", type=Amount("B"), metavar="SIZE", help="Memory that its graphs may use, such as 8GB. [by the size of its files]"
)
@option("--timeout", type=Amount("s"), default=60, metavar="TIME", help="Longest time for each file of a tier, in seconds.")
@json_option
def command(folder: Path, key: Path | None, memory: float | None, timeout: float, as_json: bool) -> None:
    """Check FOLDER, a bundle or a run.

    A bundle passes if no file is missing, extra or changed, and every model reproduces its stored outputs in onnxruntime. A run passes if
    every file is as the run wrote it, and its bundle passes. The models run in a separate process with limited memory and time.

    \b
    edgefl verify runs/0001-fedhm-digits/bundle
    edgefl verify runs/0001-fedhm-digits
    """
    from edgefl.bundle.sandbox import SandboxLimits
    from edgefl.bundle.verify import verify
    from edgefl.util.hashes import HASHES

    limits = SandboxLimits(None if memory is None else int(memory), timeout)
    if not (folder / HASHES).is_file():
        of_bundle = verify(folder, key, limits)
        if as_json:
            print_json({"folder": str(folder), "files": None, "checkpoints": None, "bundle": asdict(of_bundle)})
        else:
            _print(folder, of_bundle, key)
        return
    from edgefl.run.verify import verify_run

    report = verify_run(folder, key, limits)
    if as_json:
        print_json({"folder": str(folder), **asdict(report)})
        return
    if report.bundle is not None:
        _print(folder / "bundle", report.bundle, key)
    checkpoints = "1 checkpoint" if report.checkpoints == 1 else f"{report.checkpoints} checkpoints"
    echo(f"{folder}: {report.files} files and {checkpoints} are what the run wrote")


def _print(bundle: Path, report: VerifyReport, key: Path | None) -> None:
    for label, error in report.max_abs_errors.items():
        trained = report.max_loss_errors.get(label)
        echo(f"tier {label}: max abs error {error:.2e}" + ("" if trained is None else f", losses within {trained:.1e}"))
    if report.no_update:
        echo(f"devices send no updates: {report.no_update}")
    echo(f"{bundle}: {report.files} files verified; {_signed(report, key)}")


def _signed(report: VerifyReport, key: Path | None) -> str:
    if report.signed is None:
        return "not signed"
    if report.signed:
        return f"signed by the owner of {key}"
    if report.signer is None:
        return "its signature was not checked: give --key"
    return f"signed by {report.signer}, {'your own key' if report.signer == _own_key() else 'whose owner --key can check'}"


def _own_key() -> str:
    from edgefl.errors import InputError
    from edgefl.util.keys import SigningKey, own_key_file

    try:
        return str(SigningKey.of_file(own_key_file()).public)
    except InputError:
        return ""
