"""The command ``devices``: List device profiles and fleets, show one with its sources, or validate one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from edgefl.cli.console import note, show
from edgefl.cli.options import Command, json_option, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from edgefl.calibrate.validate import Validation
    from edgefl.fleet.figures import Figure
    from edgefl.fleet.profile import DeviceProfile, Fleet


@click.command(cls=Command)
@click.argument("name", required=False)
@option(
    "--validate",
    metavar="host|NAME|FILE",
    help="Compare the training times that a profile predicts with this machine's; host: measure a profile now.",
)
@option("--threads", type=click.IntRange(1), metavar="N", help="With --validate, threads that train. [every core]")
@json_option
def command(name: str | None, validate: str | None, threads: int | None, as_json: bool) -> None:
    """List device profiles and fleets, or show NAME (or a TOML file) with the mark and source of every figure.

    \b
    edgefl devices raspberry-pi-4
    edgefl devices --validate my-device.toml

    Marks: measured (by the source), vendor (stated by a vendor or specification), derived (by the arithmetic in the note), assumed (not
    published: run 'edgefl calibrate' on your own device).
    """
    from edgefl.fleet.load import device_names, fleet_names, load_device, load_fleet

    if validate is not None:
        if name is not None:
            raise click.UsageError(f"give NAME or --validate, got {name} and --validate {validate}")
        _validate(validate, threads, as_json)
        return
    if threads is not None:
        raise click.UsageError("--threads goes with --validate")
    if name is None:
        devices, fleets = [load_device(n) for n in device_names()], [load_fleet(n) for n in fleet_names()]
        if as_json:
            rows = {"devices": [_row(d) for d in devices], "fleets": [_fleet_row(f) for f in fleets]}
            click.echo(json.dumps(rows, indent=2))
        else:
            _print_list(devices, fleets)
        return
    fleet = load_fleet(name)
    alone = len(fleet.classes) == 1 and fleet.classes[0].device.name == fleet.name
    if as_json:
        shown = _device_json(fleet.classes[0].device) if alone else _fleet_row(fleet)
        click.echo(json.dumps(shown, indent=2))
    elif alone:
        _print_device(fleet.classes[0].device)
    else:
        _print_fleet(fleet)


def _row(device: DeviceProfile) -> dict[str, Any]:
    return {
        "name": device.name,
        "title": device.title,
        "training_bytes": device.training_bytes,
        "training_gmacs_per_s": device.compute.training_gmacs_per_s.value,
        "link": device.link.name,
        "assumed": list(device.assumed),
    }


def _device_json(device: DeviceProfile) -> dict[str, Any]:
    figures = {key: figure.model_dump() for key, figure in device.figures().items()}
    return {
        "name": device.name,
        "title": device.title,
        "reference_hardware": device.reference_hardware,
        "link": device.link.name,
        "figures": figures,
    }


def _fleet_row(fleet: Fleet) -> dict[str, Any]:
    return {
        "name": fleet.name,
        "title": fleet.title,
        "mix": fleet.mix.model_dump(),
        "budget": fleet.budget.model_dump(exclude_none=True),
        "classes": [{"device": c.device.name, "share": c.share} for c in fleet.classes],
        "behaviour": fleet.behaviour.model_dump() if fleet.behaviour else None,
        "states": [state.model_dump() for state in fleet.states],
    }


def _print_list(devices: list[DeviceProfile], fleets: list[Fleet]) -> None:
    from rich.table import Table

    from edgefl.util.units import human_bytes

    table = Table("device", "what", "memory to train in", "training", "link", "assumed figures", box=None, header_style="bold")
    for device in devices:
        rate = f"{device.compute.training_gmacs_per_s.value:g} GMAC/s"
        assumed = f"{len(device.assumed)} of {len(device.figures())}"
        table.add_row(device.name, device.title, human_bytes(device.training_bytes), rate, device.link.name, assumed)
    show(table)
    table = Table("fleet", "what", "classes", box=None, header_style="bold")
    for fleet in fleets:
        table.add_row(fleet.name, fleet.title, ", ".join(f"{100 * c.share:g} % {c.device.name}" for c in fleet.classes))
    show("")
    show(table)
    show("\nShow one with its sources: edgefl devices raspberry-pi-4")


def _print_device(device: DeviceProfile) -> None:
    show(f"{device.name}: {device.title}\n{device.reference_hardware}; link {device.link.name}: {device.link.title}\n")
    show(_figures(device.figures()))


def _figures(figures: Mapping[str, Figure]) -> Table:
    from rich.table import Table

    table = Table("figure", "value", "mark", "source", box=None, header_style="bold")
    for key, figure in figures.items():
        source = f"{figure.source}. {figure.note}" if figure.note else figure.source
        table.add_row(key, f"{figure.value:,.10g}", figure.mark, source)
    return table


def _print_fleet(fleet: Fleet) -> None:
    from rich.table import Table

    from edgefl.fleet.figures import figures_of

    show(f"{fleet.name}: {fleet.title}\nmix {fleet.mix.mark}: {fleet.mix.source}. {fleet.mix.note}\n")
    table = Table("device", "share", "what", box=None, header_style="bold")
    for c in fleet.classes:
        table.add_row(c.device.name, f"{100 * c.share:g} %", c.device.title)
    show(table)
    for key, value in fleet.budget.model_dump(exclude_none=True).items():
        show(f"{key} = {value:g}")
    if fleet.behaviour is not None:
        show("\nhow its devices behave")
        show(_figures(figures_of(fleet.behaviour, "")))
    if fleet.states:
        table = Table(
            "with --dynamic-devices", "chance", "memory left", "speed left", "mark", "source", box=None, header_style="bold"
        )
        for state in fleet.states:
            shares = (f"{100 * share:g} %" for share in (state.chance, state.memory_share, state.speed_share))
            table.add_row(state.name, *shares, state.mark, f"{state.source}. {state.note}".rstrip(" ."))
        show("")
        show(table)


def _validate(profile: str, threads: int | None, as_json: bool) -> None:
    from edgefl.fleet.load import load_device

    device = None if profile == "host" else load_device(profile)
    from edgefl.calibrate.calibrate import measure
    from edgefl.calibrate.device import Rates
    from edgefl.calibrate.validate import validate

    compute = device.compute if device else Rates.of(measure(threads=threads, notify=note))
    result = validate(compute, threads, notify=note)
    if as_json:
        click.echo(json.dumps({"profile": profile} | result.to_json(), indent=2))
    else:
        _print_validation(profile, result)


def _print_validation(profile: str, result: Validation) -> None:
    from rich.table import Table

    from edgefl.calibrate.validate import BAR
    from edgefl.util.units import human_count, human_difference, human_seconds

    show(f"A training step on this machine: predicted from {profile}, and measured\n")
    table = Table(
        "model",
        "batch",
        "MACs",
        "predicted",
        "measured",
        "range",
        "repeats",
        "error",
        "by one rate",
        box=None,
        header_style="bold",
    )
    for row in result.rows:
        own = " (calibrated on)" if row.calibrated_on else ""
        table.add_row(
            row.model + own,
            str(row.batch_size),
            human_count(row.macs),
            human_seconds(row.predicted_s),
            human_seconds(row.measured_s),
            f"{human_seconds(row.low_s)} to {human_seconds(row.high_s)}",
            str(row.repeats),
            human_difference(row.predicted_s, row.measured_s),
            human_difference(row.predicted_by_rate_s, row.measured_s),
        )
    show(table)
    verdict = "met" if result.median_error <= BAR else "not met"
    show(f"\nmedian error {result.median_error:.1%}, at most {BAR:.0%} wanted: {verdict}")
    show(
        f"without the models that calibration uses {result.median_error_elsewhere:.1%}; by one rate {result.median_error_by_rate:.1%}"
    )
    show(f"other programs took {result.busy:.0%} of this machine meanwhile")
