"""A federation in one process: its devices run the app's code, and their answers come when a test says so."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edgefl.contrib.flower.fleet import FlowerFleet, Waits
from edgefl.contrib.flower.new import write_shards
from edgefl.contrib.flower.rounds import fleet_round
from edgefl.contrib.flower.wire import Kind, Reply
from edgefl.engine.contract import open_engine
from edgefl.records import RoundRecord
from edgefl.run.run import Run
from edgefl.server.client_store import ClientStore
from edgefl.server.rounds import run_round
from edgefl.server.state import ServerState

Changed = Callable[[dict[str, Any], Reply], Reply]


@dataclass
class Node:
    """A device: who owns it, how long its answers take in seconds (None: none comes), and what becomes of them on their way."""

    owner: Any
    takes_s: float | None = 1.0
    changed: Changed = field(default=lambda asked, reply: reply)


class Federation:
    """A link to devices in this process, with a clock that moves only while the server waits."""

    def __init__(self, devices: Mapping[int, Node]) -> None:
        self.devices = dict(devices)
        self.now_s = 0.0
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.payload_bytes = 0
        self._due: dict[str, tuple[float, Reply]] = {}

    def nodes(self) -> set[int]:
        return set(self.devices)

    def send(self, node: int, kind: Kind, fields: Mapping[str, Any], blobs: Mapping[str, bytes], ttl_s: float) -> str:
        device = _device()
        asked = json.loads(json.dumps(fields))
        self.asked.append((node, asked))
        at = self.devices[node]
        handler = device.queried if kind == "query" else device.trained
        number = f"message-{len(self.asked)}"
        if at.takes_s is not None or kind == "query":
            said, sent = handler(at.owner, asked, blobs, 0.0)
            said = {**said, "ready_s": 0.25, "train_s": 0.5} if kind == "train" else said
            reply = at.changed(asked, Reply(json.loads(json.dumps(said)), dict(sent)))
            self._due[number] = self.now_s + (at.takes_s or 0.0 if kind == "train" else 0.0), reply
        if kind == "train":
            self.payload_bytes += len(blobs["payload"])
        return number

    def replies(self, sent: Collection[str]) -> dict[str, Reply]:
        due = [number for number in sent if number in self._due and self._due[number][0] <= self.now_s]
        return {number: self._due.pop(number)[1] for number in due}

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def federation(run: Run, folder: Path, trainer: str = "onnx", **owner: Any) -> Federation:
    """Return a federation with a device for every client of ``run``, which has the client's samples."""
    write_shards(run.config, folder)
    found = {}
    for client in range(run.config.clients):
        plan = run.forecast.class_plan_of(client, 1)
        values = {"client": client, **owner}
        own = _device().Owner(plan.device.name, folder / f"client-{client}.npz", folder / f"state-{client}", trainer, **values)
        found[100 + client] = Node(own)
    return Federation(found)


def _device() -> Any:
    """Return the app's code for devices; tests/flower/conftest.py makes it importable."""
    return importlib.import_module("edgefl_app.device")


def joined(run: Run, folder: Path, link: Federation, said: list[str] | None = None, **waits: float) -> FlowerFleet:
    """Return the fleet of ``run`` over ``link``."""
    folder.mkdir(parents=True, exist_ok=True)
    say = (said if said is not None else []).append
    return FlowerFleet(link, run, folder, Waits(**waits), say, lambda: link.now_s, link.sleep)


def played(run: Run, fleet: FlowerFleet | None, rounds: int, home: Path) -> tuple[ServerState, list[RoundRecord]]:
    """Run rounds with the devices of ``fleet``, or with simulated clients if it is None."""
    state, records, store = run.start(), [], ClientStore(home / "clients.sqlite")
    with store, open_engine("inline", 1, run.clients) as engine:
        for _ in range(rounds):
            by = run_round if fleet is None else partial(fleet_round, fleet)
            state, record = run.round(state, engine, store, by)
            records.append(record)
    return state, records
