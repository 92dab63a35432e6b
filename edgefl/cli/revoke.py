"""The command ``revoke``: End a device's membership: its updates no longer count."""

from pathlib import Path

import click

from edgefl.cli.console import echo, print_json
from edgefl.cli.options import Command, json_option, option
from edgefl.cli.param_types import PATH


@click.command(cls=Command)
@click.argument("device", metavar="NAME|KEY")
@option("--keys", required=True, type=PATH, metavar="FILE", help="File with the devices and their keys.")
@json_option
def command(device: str, keys: Path, as_json: bool) -> None:
    """Revoke the device of this name or public key in FILE: 'edgefl fed-round --keys FILE' refuses its updates from now on.

    \b
    edgefl revoke phone-7 --keys fleet.toml
    """
    from edgefl.run.enroll import revoke

    revoke(keys, device)
    if as_json:
        print_json({"device": device, "keys": str(keys)})
    else:
        echo(f"{device}: revoked in {keys}")
