"""The command ``verify``: Check the hashes, signature, graphs and outputs of a bundle."""

from pathlib import Path

import click

from edgefl.cli.options import PATH, Amount, Command, option


@click.command(cls=Command)
@click.argument("bundle", type=PATH)
@option("--key", type=PATH, metavar="KEY", help="Require a signature by the owner of this Ed25519 public key, a PEM file.")
@option(
    "--memory", type=Amount(), metavar="BYTES", help="Memory that its graphs may use, such as 8GB. [by the size of its files]"
)
@option("--timeout", type=Amount(), default=60, metavar="S", help="Longest time for each file of a tier, in seconds.")
def command(bundle: Path, key: Path | None, memory: float | None, timeout: float) -> None:
    """Check the folder BUNDLE: no file is missing, extra or changed, and every model reproduces its stored outputs in onnxruntime.

    The models run in a separate process with limited memory and time.

    \b
    edgefl verify runs/0001-fedhm-digits/bundle
    """
    from edgefl.bundle.sandbox import Limits
    from edgefl.bundle.verify import verify

    report = verify(bundle, key, Limits(None if memory is None else int(memory), timeout))
    for label, error in report.max_abs_errors.items():
        trained = report.max_loss_errors.get(label)
        click.echo(f"tier {label}: max abs error {error:.2e}" + ("" if trained is None else f", losses within {trained:.1e}"))
    signed = {None: "", False: "; its signature was not checked: give --key", True: f"; signed by the owner of {key}"}
    click.echo(f"{bundle}: {report.files} files verified{signed[report.signed]}")
