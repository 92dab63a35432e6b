"""The command ``enroll``: Add devices to the keys whose updates count."""

from pathlib import Path

import click

from edgefl.cli.console import echo, print_json
from edgefl.cli.options import Command, json_option, option
from edgefl.cli.param_types import PATH


@click.command(cls=Command)
@click.argument("requests", nargs=-1, type=PATH, metavar="[REQUEST]...")
@option("--keys", required=True, type=PATH, metavar="FILE", help="File with the devices and their keys; made if there is none.")
@option("--name", metavar="NAME", help="Name of the device, for one REQUEST. [the one in the request]")
@json_option
def command(requests: tuple[Path, ...], keys: Path, name: str | None, as_json: bool) -> None:
    """Add the device of each REQUEST, which its own 'edgefl_client.py enroll' wrote, to FILE. Without a REQUEST, list the devices.

    \b
    edgefl enroll phone-7.json --keys fleet.toml
    edgefl fed-round next/bundle --updates inbox --keys fleet.toml

    A request shows that the device holds its private key, not whose device it is: compare the printed key with the device's own.
    """
    from edgefl.run.enroll import enroll, enrolled

    if not requests:
        if name is not None:
            raise click.UsageError("--name needs a REQUEST")
        if as_json:
            devices = [{"name": n, "key": d.key, "revoked": d.revoked} for n, d in enrolled(keys).items()]
            print_json({"keys": str(keys), "devices": devices})
            return
        for n, device in enrolled(keys).items():
            echo("\t".join((n, device.key, *(["revoked"] if device.revoked else []))))
        return
    added = enroll(keys, requests, name)
    if as_json:
        print_json({"keys": str(keys), "devices": [{"name": n, "key": key, "revoked": False} for n, key in added.items()]})
        return
    for n, key in added.items():
        echo(f"{n}: enrolled in {keys}, key {key}")
