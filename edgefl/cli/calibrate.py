"""The command ``calibrate``: measure this machine and write its device profile."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from edgefl.cli.console import show

_BUSY = 0.1


def _seconds(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise click.BadParameter(f"got {value:g}, expected a number of seconds above 0, such as 30")
    return value


@click.command()
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="my-device.toml",
    show_default=True,
    metavar="FILE",
    help="Profile to write.",
)
@click.option("--name", metavar="NAME", help="Of the profile. [that of the file]")
@click.option("--link", metavar="NAME|FILE", help="Its network connection. [that of --like]")
@click.option(
    "--like", default="laptop", show_default=True, metavar="NAME|FILE", help="Profile whose power and throttling are assumed."
)
@click.option(
    "--seconds", type=float, callback=_seconds, default=30.0, show_default=True, metavar="X", help="About how long to measure."
)
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads to train on. [every core]")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON, with how busy the machine was.")
def command(out: Path, name: str | None, link: str | None, like: str, seconds: float, threads: int | None, as_json: bool) -> None:
    """Measure this machine in about 30 seconds and write its device profile.

    \b
    edgefl calibrate --out my-device.toml
    edgefl simulate --profile my-device.toml

    Measured are training steps of three networks in torch, their inference in onnxruntime, matrix products, convolutions, one core's memory
    bandwidth, and memory. Power and energy are not: they are another profile's figures, marked as assumed.

    A figure is what a quarter of its repeats reached, and its note has their median and range. Best on a machine that does nothing else;
    with --threads 1 the processor's own time counts, which others disturb less.
    """
    from edgefl.calibrate.calibrate import calibrate

    values, measured = calibrate(
        out,
        name=name,
        link=link,
        like=like,
        seconds=seconds,
        threads=threads,
        notify=lambda message: click.echo(message, err=True),
    )
    if as_json:
        click.echo(json.dumps({"file": str(out), "busy": measured.busy, "profile": values}, indent=2))
    else:
        _print(values)
    if measured.busy > _BUSY:
        taken = f"other programs took {measured.busy:.0%} of this machine while it was measured"
        remedy = "" if measured.threads == 1 else ", or with --threads 1"
        click.echo(f"{taken}: measure again when it is quiet{remedy}", err=True)
    click.echo(f"written: {out}; use it with: edgefl simulate --profile {out}", err=True)


def _print(values: dict[str, Any]) -> None:
    from rich.table import Table

    show(f"{values['name']}: {values['title']}\n")
    table = Table("figure", "value", "mark", "note", box=None, header_style="bold")
    for key, figure in _figures(values):
        table.add_row(
            key, f"{figure['value']:,.10g}", figure["mark"], figure["source"] if figure["mark"] == "assumed" else figure["note"]
        )
    show(table)


def _figures(values: dict[str, Any], prefix: str = "") -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            found += [(prefix + key, value)] if "value" in value else _figures(value, f"{prefix}{key}.")
    return found
