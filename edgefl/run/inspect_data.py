"""What a data set contains and what each client gets of it, without a run."""

import math

import numpy as np

from edgefl.config import RunConfig
from edgefl.data.mix import load
from edgefl.data.shards import Shards
from edgefl.data.split import Split
from edgefl.models.input_spec import InputSpec
from edgefl.report.inspected_data import DataInspection, InspectedClient
from edgefl.run.network import inputs_of
from edgefl.run.prepare import reading_of
from edgefl.util.fields import Fields

LISTED = 1000


def inspect_data(config: RunConfig) -> DataInspection:
    """Return the classes of a run's data set with their sizes, and the division of its samples among the clients; nothing is written.

    The targets of a regression have no classes: all samples count together.

    Raises:
        InputError: the data set cannot be read, or cannot be divided in this way.

    >>> found = inspect_data(RunConfig(clients=4, partition="iid"))
    >>> sum(found.train), [client.samples for client in found.clients]
    (1437, [360, 359, 359, 359])
    """
    data = load(config.dataset, config.data_dir, config.validation_share, reading_of(config))
    shards = Shards(data, config.clients, config.partition, config.seed, config.permute_labels, config.data_share)
    clients = tuple(_client(shards, client) for client in range(min(LISTED, config.clients)))
    train, test = (_by_class(split, data.classes) for split in (data.train, data.test))
    sizes = shards.sizes
    return DataInspection(
        data.name, data.title, data.input_shape, data.vocabulary, data.class_names, train, test,
        0 if data.train_owner is None else len(np.unique(data.train_owner)), data.preprocessing,
        config.partition, config.clients, min(sizes), float(np.mean(sizes)), max(sizes), clients, data.record,
    )  # fmt: skip


def network_for(config: RunConfig) -> tuple[str, Fields[InputSpec], int]:
    """Return what the data set of ``config`` says about a network: the usual one's name, a sample's shape and type, and the outputs.

    The name is empty, and shapes are by name, if samples have several inputs.

    >>> network_for(RunConfig())
    ('cnn-digits', InputSpec(shape=(1, 8, 8), dtype=torch.float32), 10)
    """
    data = load(config.dataset, config.data_dir, reading=reading_of(config))
    outputs = data.classes or max(1, math.prod(data.target_shape or ()))
    return data.default_model, inputs_of(data), outputs


def _client(shards: Shards, client: int) -> InspectedClient:
    own = shards.own(client)
    labels, counts = np.unique(shards.data.train.y[own] if shards.data.classes else [], return_counts=True)
    return InspectedClient(client, len(own), dict(zip(labels.tolist(), counts.tolist(), strict=True)))


def _by_class(split: Split, classes: int) -> tuple[int, ...]:
    return tuple(np.bincount(split.y, minlength=classes).tolist()) if classes else (len(split),)
