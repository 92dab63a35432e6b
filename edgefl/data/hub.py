"""Data sets of the Hugging Face hub, through ``datasets``; what it has fetched is read from its cache without a network."""

import logging
import os
import re
import socket
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from edgefl.data.columns import Table, given_of, parts_of
from edgefl.data.given import Given, Reading
from edgefl.errors import DataError, first_line
from edgefl.util.datasets import HUB
from edgefl.util.files import exists

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*(/[0-9A-Za-z][0-9A-Za-z._-]*)?")
"""Forms of the identifiers of the hub: OWNER/NAME, and NAME of a few old ones."""


def read(name: str, reading: Reading, flags: str = "--data DIR") -> tuple[Given, list[Path]]:
    """Return the samples of the data set ``ID`` or ``ID:CONFIGURATION``, and the files in which they are cached.

    Raises:
        DataError: there is no such data set, or no network; the message says what to fetch and where to put it.
    """
    if not _reachable():
        os.environ.setdefault(
            "HF_HUB_OFFLINE", "1"
        )  # read on import: only the cache is used, and nothing is tried again and again
    try:
        import datasets
    except ImportError:
        raise DataError(f"{HUB}{name}: needs the package datasets: pip install 'edgefl-sim[data]'") from None
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # of failed requests, the error says what to do
    identifier, _, configuration = name.partition(":")
    if not identifier:
        raise DataError(f"{HUB}{name}: names no data set, expected {HUB}ID such as {HUB}uoft-cs/cifar10")
    _check_identifier(identifier)
    try:
        parts: Any = datasets.load_dataset(identifier, configuration or None)
    except Exception as error:  # noqa: BLE001 - a client of a network raises anything
        raise DataError(f"{HUB}{name}: cannot be loaded ({first_line(error)}); {how_to_fetch(identifier, flags)}") from None
    train, test = parts_of(dict(parts))
    if not train:
        raise DataError(f"{HUB}{name}: no training part, it has {', '.join(parts)}")
    used = [train[0], *(test[:1] if reading.held_out is None else [])]
    tables = [Table(part.data.table.schema, partial(_batches, part.data.table), f"{HUB}{name}") for part in used]
    files = [Path(file["filename"]) for part in used for file in part.cache_files]
    return given_of(tables[0], tables[1] if len(tables) > 1 else None, reading), files


def _batches(table: Any, columns: list[str]) -> Any:
    return table.select(columns).to_batches(1024)


def _check_identifier(identifier: str) -> None:
    """Raise :class:`DataError` for what ``datasets`` would not fetch: a path, or one of its own readers, of which one unpickles files."""
    from datasets import packaged_modules

    readers = packaged_modules._PACKAGED_DATASETS_MODULES  # noqa: SLF001 - there is no other list of them
    if not _ID.fullmatch(identifier) or identifier in readers or exists(Path(identifier)):
        told = "is no data set of the hub, but a folder or a reader of files; give the path of your files without it"
        raise DataError(f"{HUB}{identifier}: {told}")


def _reachable() -> bool:
    """Whether the hub's computer answers; with a proxy, only a request would tell, so it is assumed."""
    if urllib.request.getproxies():
        return True
    host = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rpartition("//")[2].partition("/")[0]
    try:
        socket.create_connection((host.partition(":")[0], int(host.partition(":")[2] or 443)), timeout=5).close()
    except (OSError, ValueError):
        return False
    return True


def how_to_fetch(repository: str, flags: str) -> str:
    """Return what to do without a network about a data set of the hub; ``flags`` then name the folder."""
    fetch = f"hf download --repo-type dataset {repository} --local-dir DIR"
    return f"without a network, fetch it elsewhere with '{fetch}', copy the folder here and give {flags}"
