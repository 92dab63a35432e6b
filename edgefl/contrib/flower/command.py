"""The command ``flower``: Write an app for Flower, with which real devices train a run."""

from pathlib import Path
from typing import Any

import click

from edgefl.cli.console import echo, loading, note, print_json
from edgefl.cli.flags import run_keys, run_options
from edgefl.cli.names import check_run
from edgefl.cli.options import Command, json_option, option, trust_option
from edgefl.cli.param_types import PATH
from edgefl.config import RunConfig
from edgefl.util.extras import check_extra


@click.group("flower", no_args_is_help=True)
def command() -> None:
    """Train with real devices over Flower: write the app that 'flwr run' starts.

    \b
    edgefl flower new app --profile desk.toml --clients 3 --deadline-s 120
    flwr run app my-superlink --stream
    edgefl compare app-run simulated

    docs/flower.md has every step: keys, certificates, SuperLink, SuperNodes.
    """


@command.command("new", cls=Command)
@click.argument("folder", type=PATH, metavar="DIR")
@run_options
@option("--out", type=PATH, metavar="RUN", help="Folder of the run, where the SuperLink runs. [DIR-run]")
@option("--shards", type=PATH, metavar="DIR", help="Also write each client's samples as client-N.npz, for a rehearsal.")
@trust_option
@json_option
def new(folder: Path, config_file: Path | None, out: Path | None, shards: Path | None, as_json: bool, **flags: Any) -> None:
    """Write a Flower app to DIR. Its devices train the run that the flags configure.

    \b
    edgefl flower new app --clients 3 --profile desk.toml --deadline-s 120
    edgefl flower new app --config run.toml --shards rehearsal

    --clients is the number of devices. The fleet of --profile says which devices they are.
    --deadline-s says how long a round waits for them.
    """
    config = RunConfig.load(config_file, run_keys(flags))
    check_run(config)
    check_extra("edgefl flower", "flwr", "edgefl-sim[flower]")
    with loading():
        from edgefl.contrib.flower.new import new_app, write_shards

    new_app(config, folder, out, note)
    paths = write_shards(config, shards) if shards is not None else []
    if as_json:
        print_json({"app": str(folder), "shards": [str(path) for path in paths]})
        return
    echo(f"app: {folder}  (flwr run {folder} SUPERLINK --stream)")
    if shards is not None:
        echo(f"samples: {shards}  ({len(paths)} files, client-0.npz to {paths[-1].name})")
