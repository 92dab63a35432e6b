"""The command ``verify``: check a bundle's hashes, signature, graphs and outputs."""

from __future__ import annotations

from pathlib import Path

import click

from edgefl.cli.types import Amount


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="PUB",
    help="Refuse BUNDLE unless signed: PEM file of an Ed25519 public key.",
)
@click.option("--memory", type=Amount(), metavar="BYTES", help="That its graphs may take, such as 8GB. [by its files]")
@click.option("--timeout", type=Amount(), default=60, show_default=True, metavar="S", help="Seconds for each file of a tier.")
def command(bundle: Path, key: Path | None, memory: float | None, timeout: float) -> None:
    """Check BUNDLE: nothing missing, extra or changed, and every model computes its stored reference in onnxruntime.

    The models run in a process of limited memory and time.
    """
    from edgefl.bundle.sandbox import Limits
    from edgefl.bundle.verify import verify

    report = verify(bundle, key, Limits(None if memory is None else int(memory), timeout))
    for label, error in report.max_abs_errors.items():
        trained = report.max_loss_errors.get(label)
        click.echo(f"tier {label}: max abs error {error:.2e}" + ("" if trained is None else f", losses within {trained:.1e}"))
    signed = {None: "", False: "; its signature was not checked: give --key", True: f"; signed by the owner of {key}"}
    click.echo(f"{bundle}: {report.files} files verified{signed[report.signed]}")
