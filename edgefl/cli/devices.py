"""The command ``devices``: List device profiles and fleets, show one with its sources, or validate one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgefl.cli.console import columns, echo, print_json, show, show_indented
from edgefl.cli.options import Command, complete_name, json_option, option
from edgefl.cli.param_types import OUT_FILE, Within
from edgefl.registry import views
from edgefl.report.tables import PlainTable
from edgefl.util.units import human_budget, human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgefl.fleet.figures import Figure
    from edgefl.fleet.profile import DeviceProfile, Fleet


_WIDE = 110


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=complete_name)
@option(
    "--validate",
    metavar="host|NAME|FILE",
    help="Compare the training times that a profile predicts with this machine's; host: measure a profile now.",
)
@option("--template", type=OUT_FILE, metavar="FILE", help="Write a complete device file with comments, to fill in.")
@option("--threads", type=Within(int, 1), metavar="N", help="With --validate, threads that train. [every core]")
@json_option
def command(name: str | None, validate: str | None, template: Path | None, threads: int | None, as_json: bool) -> None:
    """List device profiles and fleets, or show NAME (or a TOML file) with the mark and source of every figure.

    \b
    edgefl devices raspberry-pi-4
    edgefl devices --validate my-device.toml
    edgefl devices --template my-board.toml

    The mark of a figure says where it comes from. measured: by the source. vendor: stated by a vendor or specification. derived: by the
    arithmetic in its note. assumed: not published; 'edgefl calibrate' measures it on your own device.
    """
    from edgefl.fleet.load import load_device, load_fleet, names

    if template is not None:
        if name is not None or validate is not None:
            raise click.UsageError("--template writes a new file: leave NAME and --validate out")
        _write_template(template, as_json)
        return
    if validate is not None:
        if name is not None:
            raise click.UsageError(f"give NAME or --validate, got {name} and --validate {validate}")
        views.load("validation")(validate, threads, as_json)
        return
    if threads is not None:
        raise click.UsageError("--threads needs --validate")
    if name is None:
        devices, fleets = [load_device(n) for n in names("devices")], [load_fleet(n) for n in names("fleets")]
        if as_json:
            rows = {"devices": [_row(d) for d in devices], "fleets": [_fleet_row(f) for f in fleets]}
            echo(json.dumps(rows, indent=2))
        else:
            _print_list(devices, fleets)
        return
    fleet = load_fleet(name)
    alone = len(fleet.classes) == 1 and fleet.classes[0].device.name == fleet.name
    device = fleet.classes[0].device
    if as_json and alone:
        figures = {key: figure.model_dump() for key, figure in device.figures().items()}
        facts = device.model_dump(include={"name", "title", "reference_hardware"})
        echo(json.dumps(facts | {"link": device.link.name, "figures": figures}, indent=2))
    elif as_json:
        echo(json.dumps(_fleet_row(fleet), indent=2))
    elif alone:
        show(f"{device.name}: {device.title}\n{device.reference_hardware}; link {device.link.name}: {device.link.title}\n")
        _print_figures(device.figures())
        if device.without_energy:
            show(f"\nIts energy is unknown: without {' and '.join(device.without_energy)}, no joules are claimed.")
    else:
        _print_fleet(fleet)


def _write_template(path: Path, as_json: bool) -> None:
    from edgefl.errors import StorageError
    from edgefl.fleet.load import template
    from edgefl.util.files import write_bytes

    if path.suffix != ".toml":
        raise click.UsageError(f"--template: expected the name of a file that ends in .toml, got {path}")
    if path.exists():
        raise StorageError(f"{path}: exists; give the name of a new file")
    write_bytes(path, template(path.stem).encode())
    if as_json:
        print_json({"file": str(path)})
    else:
        echo(f"{path}: written; replace its figures, then check it with: edgefl devices {path}")


def _row(device: DeviceProfile) -> dict[str, Any]:
    rate, assumed = device.compute.training_gmacs_per_s.value, list(device.assumed)
    row = {"name": device.name, "title": device.title, "training_bytes": device.training_bytes, "training_gmacs_per_s": rate}
    return row | {"link": device.link.name, "assumed": assumed}


def _fleet_row(fleet: Fleet) -> dict[str, Any]:
    classes = [
        {"device": c.device.name, **c.model_dump(include={"share", "budget", "largest_tier"}, exclude_none=True)}
        for c in fleet.classes
    ]
    shown = fleet.model_dump(include={"name", "title", "mix", "behaviour", "states"})
    shown |= {} if fleet.prices is None else {"prices": str(fleet.prices)}
    shown |= {} if fleet.calendar is None else {"calendar": fleet.calendar.model_dump(mode="json", exclude_none=True)}
    return shown | {"budget": fleet.budget.model_dump(exclude_none=True), "classes": classes}


def _print_list(devices: list[DeviceProfile], fleets: list[Fleet]) -> None:
    rows = []
    for device in devices:
        rate = f"{device.compute.training_gmacs_per_s.value:g} GMAC/s"
        assumed = f"{len(device.assumed)} of {len(device.figures())}"
        rows.append((device.name, device.title, human_bytes(device.training_bytes), rate, device.link.name, assumed))
    show(PlainTable.of_texts(("device", "what", "memory to train in", "training", "link", "assumed figures"), rows))
    classes = ((f.name, f.title, ", ".join(f"{100 * c.share:g} % {c.device.name}" for c in f.classes)) for f in fleets)
    show(PlainTable.of_texts(("fleet", "what", "classes"), classes))
    show("Show one with its sources: edgefl devices raspberry-pi-4")


def _print_figures(figures: Mapping[str, Figure]) -> None:
    rows = [(key, f"{f.value:,.10g}", f.mark, f"{f.source}. {f.note}" if f.note else f.source) for key, f in figures.items()]
    if columns() >= _WIDE:
        show(PlainTable.of_texts(("figure", "value", "mark", "source"), rows))
        return
    # Keys are long, and sources are sentences: side by side they would have no room.
    for key, value, mark, source in rows:
        show_indented(f"{key} = {value}  {mark}", source, marked=mark == "assumed")


def _print_fleet(fleet: Fleet) -> None:
    from edgefl.fleet.figures import figures_of

    show(f"{fleet.name}: {fleet.title}\nmix {fleet.mix.mark}: {fleet.mix.source}. {fleet.mix.note}\n")
    classes = ((c.device.name, f"{100 * c.share:g} %", c.device.title) for c in fleet.classes)
    show(PlainTable.of_texts(("device", "share", "what"), classes))
    if fleet.calendar is not None:
        show(f"calendar: {fleet.calendar}")
    if fleet.prices is not None:
        show(f"prices: {fleet.prices}")
    by_class = ((f"{c.device.name}: ", {"largest_tier": c.largest_tier, **dict(c.budget)}) for c in fleet.classes)
    for prefix, limits in [("", dict(fleet.budget)), *by_class]:
        for key, value in limits.items():
            if value is not None:
                shown = human_budget(key, value) if key.endswith(("_bytes", "_j")) else f"{value:g}"
                show(f"{prefix}{key} = {shown}")
    if fleet.behaviour is not None:
        show("\nhow its devices behave")
        _print_figures(figures_of(fleet.behaviour, ""))
    rows = []
    for state in fleet.states:
        shares = (f"{100 * share:g} %" for share in (state.chance, state.memory_share, state.speed_share))
        rows.append((state.name, *shares, state.mark, f"{state.source}. {state.note}".rstrip(" .")))
    if rows:
        heads = ("with --dynamic-devices", "chance", "memory left", "speed left", "mark", "source")
        show(PlainTable.of_texts(heads, rows))
