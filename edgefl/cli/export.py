"""The command ``export``: Write the bundle of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from edgefl.cli.console import note
from edgefl.cli.options import PATH, Command, option

if TYPE_CHECKING:
    from edgefl.bundle.forms import Form


@click.command(cls=Command)
@click.argument("run", type=PATH)
@option("--out", required=True, type=PATH, metavar="BUNDLE", help="Folder to write, which must not exist.")
@option(
    "--form",
    type=click.Choice(("factored", "composed", "auto")),
    default="auto",
    help="Form of factorized layers: factored (small factors), composed (multiplied out), or the one that suits the tier's device.",
)
@option("--quantize", type=click.Choice(("int8",)), help="Also write 8-bit variants, with their accuracy.")
@option("--fp16", is_flag=True, help="Also write 16-bit variants, with their accuracy.")
@option("--sign", type=PATH, metavar="KEY", help="Sign the bundle with an Ed25519 private key, a PEM file.")
@option("--with-client", is_flag=True, help="Also write the Python and browser clients.")
def command(
    run: Path, out: Path, form: Form, quantize: Literal["int8"] | None, fp16: bool, sign: Path | None, with_client: bool
) -> None:
    """Write the bundle of the finished run in the folder RUN.

    A bundle contains, for each tier, the graphs that infer and train, with reference outputs, costs and hashes.

    \b
    edgefl export runs/0001-fedhm-digits --out bundle
    """
    from edgefl.run.export import export

    export(run, out, form=form, quantize=quantize, fp16=fp16, sign=sign, client=with_client, notify=note)
    click.echo(f"{out}: written; check it with: edgefl verify {out}{'' if sign is None else ' --key PUBLIC_KEY'}")
