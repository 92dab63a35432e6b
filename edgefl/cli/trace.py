"""The command ``trace``: Make traces of availability from your own logs."""

from pathlib import Path
from typing import Any

import click

from edgefl.cli.console import echo, print_json
from edgefl.cli.options import Command, json_option, option
from edgefl.cli.param_types import PATH


@click.group("trace", no_args_is_help=True)
def command() -> None:
    """Make traces of availability from your own logs.

    \b
    edgefl trace import log.csv --id device --zone Europe/Berlin --out trace.csv
    """


@command.command("import", cls=Command)
@click.argument("log", type=PATH)
@option("--id", required=True, metavar="COLUMN", help="Column with the name of the device.")
@option("--time", type=click.Choice(["iso", "unix"], case_sensitive=False), default="iso", help="How times are written. [iso]")
@option("--begin", default="from", metavar="COLUMN", help="Column of when a state begins. [from]")
@option("--end", default="to", metavar="COLUMN", help="Column of when it ends; without one, with the device's next row. [to]")
@option("--state", default="state", metavar="COLUMN", help="Column of states; without one, every row is eligible. [state]")
@option("--zone", default="UTC", metavar="NAME", help="Zone of the fleet's days, and of times without one. [UTC]")
@option("--out", required=True, type=PATH, metavar="FILE", help="Trace to write.")
@json_option
def import_(log: Path, out: Path, as_json: bool, **columns: Any) -> None:
    """Make a trace of LOG, a CSV file with a row per state of a device, and show its devices, hours, gaps and overlaps.

    \b
    edgefl trace import log.csv --id device --zone Europe/Berlin --out trace.csv
    edgefl simulate --dry-run --availability trace.csv --rounds 3

    Second 0 of the trace is the first local midnight, so that --start-hour 0 is right. Clients are numbered by the names of the devices.
    """
    from edgefl.fleet.trace_import import LogColumns, import_log
    from edgefl.util.files import write_bytes

    trace = import_log(log, LogColumns(**columns))
    write_bytes(out, trace.text().encode())
    facts = dict(trace.facts())
    if as_json:
        print_json({"trace": str(out), **facts})
        return
    for name, figure in facts.items():
        echo(f"{name}: {figure}")
    echo(f"written: {out}")
