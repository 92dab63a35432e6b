"""The command ``calibrate``: Measure this machine and write its device profile."""

import json
from pathlib import Path

import click

from edgefl.cli.console import echo, loading, note, show
from edgefl.cli.names import check_names
from edgefl.cli.options import Command, json_option, option
from edgefl.cli.param_types import OUT_FILE, Amount, Within
from edgefl.report.tables import PlainTable
from edgefl.util.files import TomlTable

_BUSY = 0.1


@click.command(cls=Command)
@option("--out", type=OUT_FILE, default="my-device.toml", metavar="FILE", help="Profile to write.")
@option("--name", metavar="NAME", help="Name of the profile. [name of the file]")
@option("--title", metavar="TEXT", help="Name of the device for people. [how it was measured]")
@option("--link", metavar="NAME|FILE", help="Profile of its network connection. [that of --like]")
@option(
    "--like",
    default="laptop",
    metavar="NAME|FILE",
    help="Profile whose power and throttling are assumed, and with --from its memory.",
)
@option(
    "--from",
    "rows",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Fit the profile to this CSV file of steps measured elsewhere.",
)
@option(
    "--seconds", type=Amount("s"), default=30.0, metavar="TIME", help="About how long to measure, in seconds, or such as 2min."
)
@option("--threads", type=Within(int, 1), metavar="N", help="Threads that train. [every core]")
@option(
    "--power",
    metavar="rapl|jetson|pi5|battery|FILE",
    help="Measure idle_w and load_w with this sensor, or take them from the CSV file of a meter. [those of --like]",
)
@json_option
def command(
    out: Path,
    name: str | None,
    title: str | None,
    link: str | None,
    like: str,
    rows: Path | None,
    seconds: float,
    threads: int | None,
    power: str | None,
    as_json: bool,
) -> None:
    """Measure this machine in about 30 seconds and write its device profile.

    \b
    edgefl calibrate --out my-device.toml
    edgefl simulate --profile my-device.toml
    edgefl calibrate --from steps.csv --like mid-range-phone --out my-phone.toml

    It measures training steps in torch, of three networks and of small ones, and their inference in onnxruntime. It also measures matrix
    products, the memory bandwidth of one core, and memory. Power is that of --like, marked as assumed, unless --power measures it. With
    --from, so is memory, and the error of seconds is at least that of --like.

    The CSV file of a meter has the column watts, or volts and amperes. Beside it stands time, in seconds since 1970 or as ISO 8601, while
    calibrate measures this machine; or state, which is idle or training. With --from it is state.

    Each figure is the fast quartile of its repeats; its note gives their median and range. Run it on an idle machine. --threads 1 uses
    processor time, which other programs disturb less.
    """
    check_names(device=[like])
    with loading():
        from edgefl.contrib.calibrate.calibrate import calibrate

    values, measured = calibrate(
        out,
        name=name,
        title=title,
        link=link,
        like=like,
        rows=rows,
        seconds=seconds,
        threads=threads,
        power=power,
        notify=note,
    )
    if as_json:
        echo(json.dumps({"file": str(out), "busy": measured and measured.busy, "profile": values}, indent=2))
    else:
        show(f"{values['name']}: {values['title']}\n")
        shown = (
            (key, f"{f['value']:,.10g}", f["mark"], f["source" if f["mark"] == "assumed" else "note"])
            for key, f in _figures(values)
        )
        show(PlainTable.of_texts(("figure", "value", "mark", "note"), shown))
    if measured is not None and measured.busy > _BUSY:
        taken = f"other programs took {measured.busy:.0%} of this machine while it was measured"
        remedy = "" if measured.threads == 1 else ", or with --threads 1"
        note(f"{taken}: measure again when it is quiet{remedy}")
    note(f"written: {out}; use it with: edgefl simulate --profile {out}")


def _figures(values: TomlTable, prefix: str = "") -> list[tuple[str, TomlTable]]:
    figures: list[tuple[str, TomlTable]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            figures += [(prefix + key, value)] if "value" in value else _figures(value, f"{prefix}{key}.")
    return figures
