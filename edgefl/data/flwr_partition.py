"""Partitions by the partitioners of flwr-datasets, if it is installed: ``flwr:pathological(num_classes_per_partition=2)``."""

import contextlib
import inspect
import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.errors import ConfigError, DataError, first_line, nearest
from edgefl.util.spec import called

PREFIX = "flwr:"
_FORM = f"{PREFIX}NAME or {PREFIX}NAME(keyword=value, …), such as {PREFIX}dirichlet(alpha=0.5)"
_ENDING = "partitioner"


@dataclass(frozen=True)
class Flwr:
    """A partitioner of flwr-datasets, such as DirichletPartitioner.

    Attributes:
        name: its name without "Partitioner", in small letters and without separators.
        arguments: keyword and value, of those that are given.
    """

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()


def parse_flwr(spec: str) -> Flwr:
    """Return the partitioner that ``spec`` names, without importing it; ConfigError for another form.

    >>> parse_flwr("flwr:dirichlet(alpha=0.5)")
    Flwr(name='dirichlet', arguments=(('alpha', 0.5),))
    """
    try:
        name, arguments = called(spec.removeprefix(PREFIX))
        if not name.isidentifier():
            raise ValueError(spec)
    except ValueError:
        raise ConfigError(f"partition: got {spec!r}, expected {_FORM}") from None
    return Flwr(_plain(name), tuple(arguments.items()))


def split_by_flwr(
    labels: np.ndarray, clients: int, partition: Flwr, rng: np.random.Generator, owners: np.ndarray | None
) -> list[np.ndarray]:
    """Return each client's sample numbers, ascending. Some partitioners leave samples out.

    Arguments that are not given: ``num_partitions`` is ``clients``, ``partition_by`` is the column ``label`` (of partitioners by a natural
    id: ``owner``), and ``seed`` is drawn by ``rng``.

    Raises:
        ConfigError: flwr-datasets is not installed, has no such partitioner, or refuses the arguments.
        DataError: it gives no partition for some client, or more of them than clients.
    """
    try:
        import datasets
        import flwr_datasets.partitioner as known
    except ImportError as error:
        raise ConfigError(
            f"partition: {PREFIX}{partition.name} needs flwr-datasets, and {error.name} is not installed; run pip install flwr-datasets "
            "(it takes datasets 4; without its dependencies it also runs with datasets 5)"
        ) from None
    kinds = {
        _plain(name): kind for name, kind in vars(known).items() if name.lower().endswith(_ENDING) and "Vertical" not in name
    }
    kinds.pop("", None)  # the base class
    if (kind := kinds.get(partition.name)) is None:
        hint = nearest(partition.name, list(kinds))
        raise ConfigError(
            f"partition: flwr-datasets has no partitioner {partition.name!r};{hint} known: {', '.join(sorted(kinds))}"
        )
    taken, arguments = inspect.signature(kind).parameters, dict(partition.arguments)
    usual = {
        "num_partitions": clients,
        "partition_by": "owner" if "naturalid" in partition.name else "label",
        "seed": int(rng.integers(2**31)),
    }
    columns = {"index": np.arange(len(labels)), "label": labels} | ({} if owners is None else {"owner": owners})
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # progress bars
            warnings.simplefilter("ignore")
            divided = kind(**{key: value for key, value in usual.items() if key in taken} | arguments)
            divided.dataset = datasets.Dataset.from_dict(columns)
            count = divided.num_partitions
            if count != clients:
                raise DataError(f"{PREFIX}{partition.name}: makes {count} partitions for {clients} clients; take {count} clients")
            parts = [np.sort(np.asarray(divided.load_partition(client)["index"], np.int64)) for client in range(clients)]
    except DataError:
        raise
    except Exception as error:  # it checks its arguments in many ways
        raise ConfigError(f"partition: {PREFIX}{partition.name}: {first_line(error)}") from error
    if empty := [client for client, part in enumerate(parts) if not len(part)]:
        raise DataError(f"{PREFIX}{partition.name}: client {empty[0]} gets no sample; change the arguments")
    return parts


def _plain(name: str) -> str:
    return name.lower().replace("_", "").removesuffix(_ENDING)
