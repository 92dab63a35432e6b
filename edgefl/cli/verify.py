"""The command ``verify``: check a bundle's hashes, graphs and outputs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
def command(bundle: Path) -> None:
    """Check BUNDLE: nothing missing, extra or changed, and every model computes its stored reference in onnxruntime."""
    from edgefl.run import verify

    result = verify(bundle)
    for label, error in result.max_abs_errors.items():
        click.echo(f"tier {label}: max abs error {error:.2e}")
    click.echo(f"{bundle}: {result.files} files verified")
