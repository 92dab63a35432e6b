"""Writes a Flower app for a run: the files of ``export/flower`` and ``export/python``, and the run's configuration."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tomlkit

from edgefl.client.client import Clients
from edgefl.config import RunConfig
from edgefl.consent import remember
from edgefl.contrib.flower.setups import check_run
from edgefl.errors import InputError
from edgefl.run.guarded import DEFENCE, guarded
from edgefl.run.prepare import prepare
from edgefl.util.files import check_free, shared, whole_folder, write_bytes

PACKAGE = "edgefl_app"


def new_app(
    config: RunConfig, folder: Path | str, out: Path | str | None = None, notify: Callable[[str], None] | None = None
) -> Path:
    """Write a Flower app that trains ``config`` into ``folder``, which is absent or empty, and return it.

    ``out`` is the folder of the run on the computer of the SuperLink; None: ``run`` beside the app. If ``config`` was not given a defence,
    the app has ``norm-filter``; ``notify`` is called with a line if it cannot.

    Raises:
        InputError: ``folder`` holds something, or a name or value of ``config`` is wrong. Nothing is written then.
        BudgetError: no device of the run's fleet fits any tier.
    """
    folder = Path(folder)
    check_free(folder, InputError)
    config, unguarded = guarded(config, config.model_fields_set)
    if unguarded and notify is not None:
        notify(f"updates are averaged as they are, without {DEFENCE}: {unguarded}")
    check_run(prepare(config))  # finds what is wrong before devices are started
    run = Path(out) if out is not None else folder.parent / f"{folder.name}-run"
    remember(config.model_dump())
    with whole_folder(folder) as temporary:
        for path, content in _files():
            write_bytes(temporary / path, content)
        write_bytes(temporary / PACKAGE / "run.toml", config.to_toml().encode())
        project = tomlkit.parse((shared("export") / "flower" / "pyproject.toml").read_text(encoding="utf-8"))
        project["tool"]["flwr"]["app"]["config"] |= {"out": str(run.resolve()), "files": str(Path.cwd())}
        write_bytes(temporary / "pyproject.toml", tomlkit.dumps(project).encode())
    return folder


def _files() -> Iterator[tuple[str, bytes]]:
    for path in sorted((shared("export") / "flower" / PACKAGE).glob("*.py")):
        yield f"{PACKAGE}/{path.name}", path.read_bytes()
    for path in sorted((shared("export") / "python").glob("edgefl_*.py")):
        yield f"{PACKAGE}/client/{path.name}", path.read_bytes()


def write_shards(config: RunConfig, folder: Path | str) -> list[Path]:
    """Write the samples of every simulated client as ``client-N.npz``, for a rehearsal whose devices are processes of one computer.

    Raises:
        InputError: a file exists already, or a name or value of ``config`` is wrong.
    """
    clients: Clients = prepare(config).clients
    paths = [Path(folder) / f"client-{number}.npz" for number in range(len(clients.shards))]
    if taken := [path for path in paths if path.exists()]:
        raise InputError(f"{taken[0]}: exists; give another folder")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(paths):
        shard = clients.shards.train(number)
        np.savez(path, y=shard.y, **(shard.x if isinstance(shard.x, dict) else {"x": shard.x}))
    return paths
