"""The command ``export``: write the bundle of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from edgefl.bundle.forms import Form


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="BUNDLE", help="Folder to write; must not exist.")
@click.option(
    "--form",
    type=click.Choice(("factored", "composed", "auto")),
    default="auto",
    show_default=True,
    help="Of factorized layers: small factors, multiplied out, or what suits the tier's device.",
)
@click.option("--quantize", type=click.Choice(("int8",)), help="Write 8-bit variants too, with their accuracy.")
@click.option("--fp16", is_flag=True, help="Write 16-bit variants too, with their accuracy.")
@click.option(
    "--sign", type=click.Path(path_type=Path), metavar="KEY", help="Sign the bundle: PEM file of an Ed25519 private key."
)
@click.option("--with-client", is_flag=True, help="Put the Python and browser clients beside the graphs.")
def command(
    run: Path, out: Path, form: Form, quantize: Literal["int8"] | None, fp16: bool, sign: Path | None, with_client: bool
) -> None:
    """Write the bundle of the finished run in the folder RUN: per tier the graphs that infer and train, references, costs and hashes."""
    from edgefl.run.export import export

    export(
        run,
        out,
        form=form,
        quantize=quantize,
        fp16=fp16,
        sign=sign,
        client=with_client,
        notify=lambda message: click.echo(message, err=True),
    )
    click.echo(f"{out}: written; check it with: edgefl verify {out}{'' if sign is None else ' --key PUBLIC_KEY'}")
