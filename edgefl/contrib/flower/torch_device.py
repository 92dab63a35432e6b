"""Training with torch on a device: the client of the simulation, on the device's own samples."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgefl.client.client import Clients
from edgefl.client.job import Job
from edgefl.client.messages import read_setup, task_of
from edgefl.config import admit_keys
from edgefl.data.shards import Shards
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import InputError
from edgefl.util.compute import one_thread
from edgefl.util.fields import Fields, each
from edgefl.wire.message import MessageFields, read_header

TASK, JOB_SETUP = "task.json", "setup.json"
"""Files of a setup for torch: the run's task, and the method and tier of jobs."""


def train_in_torch(
    files: Mapping[str, bytes],
    job: MessageFields,
    payload: bytes,
    kept: bytes | None,
    samples: tuple[Fields[np.ndarray], np.ndarray],
    memory_bytes: int | None,
) -> tuple[MessageFields, bytes, bytes]:
    """Train a job as the simulation does, to the same bits on the same kind of computer.

    Args:
        files: of the setup that :func:`edgefl.contrib.flower.setups.task_for` made.
        job: the fields of the server's message.
        payload: the sub-model, encoded.
        kept: what the device stored in its last round; None before its first.
        samples: x (n, …) float32 or int64, of several inputs by name, and labels or targets y (n, …).
        memory_bytes: what the device's owner allows for training; None: no limit.

    Returns:
        The fields of the answer, what the device stores, and the update; both encoded, and empty if it has not trained.

    Raises:
        WireError: a file of the setup or the payload is damaged, or of another version of edgefl.
    """
    fields, (method, _) = read_header(files[TASK], "task")[0], read_header(files[JOB_SETUP], "setup")
    check_task(fields, str(method["method"]))
    task = task_of({**fields, "pinned": ()})
    setup = read_setup(files[JOB_SETUP], files.__getitem__)
    mine = Job(
        job["round"], job["client"], setup.method, setup.tier, payload, kept, memory_bytes, job["micro_batch"],
        recompute=tuple(job["recompute"]),
    )  # fmt: skip
    with one_thread():
        outcome = _Alone(replace(task, clients=1, partition="iid", data_share=1.0, enforce="meter"), *samples).run(mine)
    names = "status", "steps", "train_loss", "measured_peak_activation_bytes", "measured_training_memory_bytes", "labels"
    return {name: getattr(outcome, name) for name in names}, outcome.kept, outcome.payload


def check_task(fields: MessageFields, method: str) -> None:
    """Raise :class:`InputError` if a server's task names code that the owner of this device has not consented to."""
    known = {key: fields.get(key) for key in ("plugins", "dataset", "codec")}
    if fields.get("conduct") is not None:
        raise InputError("the server's task: it simulates what clients do, and this device trains; ask for another")
    network, criterion = fields["architecture"], fields["criterion"]
    model = network.get("spec") or network.get("model")
    own = {"model": model, "loss": criterion.get("spec"), "metric": criterion.get("measure")}
    admit_keys({**known, "objective": fields["objective"][0], "method": method, **own}, "the server's task", {})


class _Alone(Clients):
    """A device's samples, whatever the number of its client is in the run."""

    def __init__(self, task: Any, x: Fields[np.ndarray], y: np.ndarray) -> None:
        classes, own = task.architecture.classes if y.dtype == np.int64 else 0, Split(x, y)
        names = tuple(map(str, range(classes)))
        vocabulary = each(lambda part: int(part.max()) + 1 if part.dtype == np.int64 else 0, x)
        data = Dataset("own", "own", own, own, names, {}, "", vocabulary=vocabulary)
        super().__init__(task, data)
        self.shards = _OwnSamples(data, 1, "iid", task.seed)


class _OwnSamples(Shards):
    def _checked(self, client: int) -> int:
        return 0
