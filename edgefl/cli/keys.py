"""The command ``keys``: Make and show the keys that sign bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgefl.cli.console import echo, print_json
from edgefl.cli.options import Command, json_option, option
from edgefl.cli.param_types import OUT_FILE, PATH

if TYPE_CHECKING:
    from edgefl.util.keys import PublicKey


@click.group("keys", no_args_is_help=True)
def command() -> None:
    """Make and show the Ed25519 keys that sign bundles.

    'edgefl export' and 'edgefl fed-round' sign with your own key, which is made at its first use. Another one, such as a team's, is a file:

    \b
    edgefl keys show
    edgefl keys new team.pem
    edgefl export runs/0001-fedhm-digits --out bundle --sign team.pem
    """


@command.command("show", cls=Command)
@click.argument("key", type=PATH, required=False)
@option("--out", type=OUT_FILE, metavar="FILE", help="Write the public key to FILE, a PEM file for --key.")
@json_option
def show(key: Path | None, out: Path | None, as_json: bool) -> None:
    """Show a public key.

    KEY is a file with a private or public key (PEM), or a bundle, whose signer's key is shown. Without KEY, it is your own.

    \b
    edgefl keys show --out my.pub
    edgefl keys show bundle
    """
    from edgefl.util.files import write_bytes
    from edgefl.util.keys import SigningKey, own_key_file

    public = SigningKey.own().public if key is None else _public(key)
    if out is not None:
        write_bytes(out, public.pem)
    if as_json:
        print_json({"file": str(own_key_file() if key is None else key), "public_key": str(public), "written": out and str(out)})
        return
    echo(f"{own_key_file() if key is None else key}: public key {public}")
    if out is not None:
        echo(f"{out}: written; for --key")


@command.command("new", cls=Command)
@click.argument("key", type=OUT_FILE)
@json_option
def new(key: Path, as_json: bool) -> None:
    """Make a pair of keys.

    KEY is the private one, for --sign. The public one, for --key, is written beside it and ends in .pub.

    \b
    edgefl keys new team.pem
    """
    from edgefl.errors import InputError
    from edgefl.util.files import write_bytes
    from edgefl.util.keys import SigningKey

    public_file = key.with_suffix(".pub")
    if public_file.exists() or public_file == key:
        raise InputError(f"{public_file}: exists, or is the private key itself; expected another name")
    public = SigningKey.new(key).public
    write_bytes(public_file, public.pem)
    if as_json:
        print_json({"file": str(key), "public_file": str(public_file), "public_key": str(public)})
        return
    echo(f"{key}: written; the private key: keep it to yourself, for --sign")
    echo(f"{public_file}: written; public key {public}, for --key")


def _public(path: Path) -> PublicKey:
    from edgefl.bundle.manifest import SIGNER
    from edgefl.errors import InputError
    from edgefl.util.files import read_at_most
    from edgefl.util.keys import PublicKey, SigningKey

    if path.is_dir():
        if not (path / SIGNER).is_file():
            raise InputError(f"{path}: has no {SIGNER}: not signed, or no bundle")
        return PublicKey.of_file(path / SIGNER)
    private = b"PRIVATE KEY" in read_at_most(path, 1 << 16, InputError)
    return SigningKey.of_file(path).public if private else PublicKey.of_file(path)
