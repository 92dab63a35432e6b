"""The devices of a Flower federation as the fleet of a run: who is connected, what each was sent, and what came back."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from edgefl.contrib.flower.devices import MOST, Device, Roster
from edgefl.contrib.flower.rounds import DeviceAnswer, Sending
from edgefl.contrib.flower.setups import Setup, graphs_for, task_for
from edgefl.contrib.flower.wire import FlowerLink, Reply
from edgefl.errors import ConfigError, EdgeflError, WireError, printable
from edgefl.records import Outcome, Shortfall
from edgefl.rng import generator
from edgefl.run.run import Run
from edgefl.server.exchange import Exchange
from edgefl.server.rounds import Server
from edgefl.util.validation import explain
from edgefl.wire.message import MessageFields
from edgefl.wire.update_file import MAX_COUNT, are_labels

PAYLOAD = "payload"
_NO_DEADLINE_S = 12 * 3600.0
_PATIENCE_S = 10.0  # until the server says that it waits for devices


@dataclass(frozen=True)
class Waits:
    """How long the server waits, in seconds.

    Attributes:
        join_s: for all devices before the first round; then it begins with those that are there.
        start_s: for the start of a device's process, in addition to the deadline of a round.
        poll_s: between two looks at the answers.
    """

    join_s: float = 600.0
    start_s: float = 120.0
    poll_s: float = 0.5


@dataclass(frozen=True)
class _Said:
    """The fields of a device's answer to a job."""

    status: Literal["trained", "out_of_memory", "diverged", "crashed", "no_setup"]
    ready_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    train_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    steps: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    train_loss: Annotated[float, Field(allow_inf_nan=False)] | None = None
    measured_peak_activation_bytes: Annotated[int, Field(ge=0, le=MOST)] | None = None
    measured_training_memory_bytes: Annotated[int, Field(ge=0, le=MOST)] | None = None
    labels: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    problem: Annotated[str, Field(max_length=2000)] = ""


_SAID = TypeAdapter(_Said)


@dataclass(frozen=True)
class _Open:
    """A message without an answer."""

    client: int
    round: int
    sent_s: float


class FlowerFleet:
    """A fleet over ``link``; its devices are listed in ``devices.json`` in the folder of the run."""

    def __init__(
        self,
        link: FlowerLink,
        run: Run,
        folder: Path,
        waits: Waits,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        names = [of.device.name for of in run.plan.classes]
        classes = [names[number] for number in run.plan.population.classes(np.arange(run.config.clients)).tolist()]
        self._link, self._run, self._waits, self._say = link, run, waits, say
        self.clock_s, self._sleep = clock, sleep
        self._roster = Roster(folder / "devices.json", classes, secrets.token_hex(8))
        self._before = len(self._roster.devices)
        self._nodes: dict[int, int] = {}
        """Client → node."""
        self._asked: dict[str, int] = {}
        """Queries without an answer → node."""
        self._known: set[int] = set()
        """Nodes that were asked since they connected."""
        self._open: dict[str, _Open] = {}
        self._setups: dict[tuple[str, str, str], Setup] = {}
        self._equipped: dict[tuple[int, str], Shortfall | None] = {}
        """Client and hash of a setup → why its owner refuses it, None if it has stored it."""
        self.setup_bytes = 0
        self._joined = False

    def free(self) -> Mapping[int, Device]:
        """Return the connected devices that do not train, by client; wait until there is one, and at first, for a while, for all.

        In a resumed run, all are those that took part before.
        """
        wanted, began_s = 1 if self._joined else self._before or self._run.config.clients, self.clock_s()
        announced = False
        while True:
            devices = self._present()
            if len(devices) >= wanted or (devices and self.clock_s() - began_s >= self._waits.join_s):
                self._joined = True
                return devices
            if not devices and self.clock_s() - began_s >= max(self._waits.join_s, self._longest_s):
                raise EdgeflError(
                    f"no device for {self.clock_s() - began_s:.0f} s; start SuperNodes that have the profiles and the data of the run, "
                    "then continue with resume=true"
                )
            if not announced and self.clock_s() - began_s >= _PATIENCE_S:
                missing = f"waiting for {wanted - len(devices)} more of {wanted} devices"
                self.say(f"{missing}, for at most {self._waits.join_s:g} s" if not self._joined else missing)
                announced = True
            self._sleep(self._waits.poll_s)

    @property
    def _longest_s(self) -> float:
        deadline_s = self._run.plan.deadline_s
        return self._waits.start_s + (_NO_DEADLINE_S if deadline_s is None else deadline_s)

    def _present(self) -> dict[int, Device]:
        nodes = self._link.nodes()
        for node in sorted(nodes - self._known):
            self._asked[self._link.send(node, "query", {"ask": "hello"}, {}, self._longest_s)] = node
        self._known = nodes
        for message, reply in self._link.replies(list(self._asked)).items():
            self._greet(self._asked.pop(message), reply)
        at_work = {session.client for session in self._open.values()}
        return {
            client: self._roster.devices[client]
            for client, node in sorted(self._nodes.items())
            if node in nodes and client not in at_work
        }

    def _greet(self, node: int, reply: Reply) -> None:
        try:
            if reply.error:
                raise WireError(reply.error)
            device = Device.read(reply.fields)
            if device.trainer == "onnx" and self._run.config.codec != "fp32":
                raise ConfigError(
                    f"device {device.key[:8]}: codec {self._run.config.codec} needs torch there; give trainer torch, or codec fp32"
                )
            client = self._roster.admit(device)
        except (WireError, ConfigError) as error:
            self.say(f"node {node} does not take part: {error}")
            return
        self._nodes = {other: at for other, at in self._nodes.items() if at != node} | {client: node}
        self._equipped = {key: short for key, short in self._equipped.items() if key[0] != client}
        self._equipped |= {(client, digest): None for digest in device.setups}
        self._open = {
            message: session for message, session in self._open.items() if session.client != client
        }  # it has started anew
        self.say(f"client {client}: {device.device}, {device.samples:,} samples, {device.trainer}")

    def equip(self, server: Server, sendings: Sequence[Sending], exchange: Exchange) -> Mapping[int, Shortfall | None]:
        """Send the setups of their tiers to devices that lack them; return who is ready (None), or refuses, and why."""
        digests, waiting = {}, dict[str, int]()
        for sending in sendings:
            client, expected = sending.session.client, sending.session.expected
            setup = self._setup(server, sending, exchange)
            digests[client] = setup.digest
            need, have = expected.predicted_memory_bytes or 0.0, self._roster.devices[client].memory_bytes
            if have is not None and need > have:
                short = Shortfall("memory_bytes", float(need), float(have), expected.device, sending.session.tier.ratio)
                self._equipped[client, setup.digest] = short
            if (client, setup.digest) in self._equipped:
                continue
            fields = {"ask": "setup", "setup": setup.digest}
            waiting[self._link.send(self._nodes[client], "query", fields, setup.files, self._longest_s)] = client
            self.setup_bytes += sum(map(len, setup.files.values()))
        end_s = self.clock_s() + self._longest_s
        while waiting and self.clock_s() < end_s:
            for message, reply in self._link.replies(list(waiting)).items():
                client = waiting.pop(message)
                if reply.fields.get("status") == "stored":
                    self._equipped[client, digests[client]] = None
                else:
                    self.say(f"client {client}: its setup failed: {reply.error or reply.fields.get('problem')}")
            gone = set(waiting.values()) - self.connected(list(waiting.values()))
            waiting = {message: client for message, client in waiting.items() if client not in gone}
            if waiting:
                self._sleep(self._waits.poll_s)
        return {
            client: self._equipped[client, digest] for client, digest in digests.items() if (client, digest) in self._equipped
        }

    def _setup(self, server: Server, sending: Sending, exchange: Exchange) -> Setup:
        trainer, tier, method = self._roster.devices[sending.session.client].trainer, sending.session.tier, server.method
        key = method.config.model_dump_json(), tier.label, trainer
        if key not in self._setups:
            run = self._run if self._run.method == method else self._run.at(method)
            if trainer == "torch":
                self._setups[key] = task_for(run, sending.submodel)
            else:
                self._setups[key] = graphs_for(run, sending.submodel, sending.job.payload, exchange.shapes(tier))
        return self._setups[key]

    def send(self, server: Server, sending: Sending) -> None:
        """Send a device its job: numbers as JSON, and the payload as it is counted."""
        job, session, training = sending.job, sending.session, server.forecast.plan.workload.training
        device = self._roster.devices[job.client]
        setup = self._setups[server.method.config.model_dump_json(), session.tier.label, device.trainer]
        # The device draws what the simulated client would draw. It does not learn the run's seed, on which noise of the server may depend.
        draws = {
            purpose: generator(server.forecast.seed, job.round, job.client, purpose) for purpose in ("train", "draw", "flip")
        }
        dropout = int(draws["train"].integers(2**63)) % 2**23
        fields: MessageFields = {
            "run": self._roster.run, "setup": setup.digest, "round": job.round, "client": job.client, "tier": session.tier.label,
            "seed": dropout, "states": {purpose: rng.bit_generator.state for purpose, rng in draws.items()},
            "lr": training.at(job.round).lr, "micro_batch": job.micro_batch, "recompute": list(job.recompute),
        }  # fmt: skip
        sent_s = self.clock_s()
        message = self._link.send(self._nodes[job.client], "train", fields, {PAYLOAD: job.payload}, self._longest_s)
        self._open[message] = _Open(job.client, job.round, sent_s)

    def answers(self) -> Sequence[DeviceAnswer]:
        """Return the answers that have arrived since the last call; wait a little if there is none."""
        replies = self._link.replies(list(self._open))
        if not replies:
            self._sleep(self._waits.poll_s)
        return [self._answer(self._open.pop(message), reply) for message, reply in replies.items()]

    def _answer(self, sent: _Open, reply: Reply) -> DeviceAnswer:
        total_s = self.clock_s() - sent.sent_s
        try:
            if reply.error:
                raise WireError(reply.error)
            said = _SAID.validate_python(reply.fields)
            _check_labels(said.labels, self._run.architecture.classes)
            if said.status == "trained" and not reply.blobs.get(PAYLOAD):
                raise WireError("trained: the answer has no update")
        except (WireError, ValidationError) as error:
            problem = str(error) if isinstance(error, WireError) else "; ".join(explain(wrong) for wrong in error.errors())
            return DeviceAnswer(sent.round, Outcome(sent.client, "crashed"), total_s, problem=problem, gone=reply.gone)
        if said.status == "no_setup":  # its owner has emptied its folder; the next round sends the setup again
            self._equipped = {key: short for key, short in self._equipped.items() if key[0] != sent.client}
        status = "crashed" if said.status == "no_setup" else said.status
        outcome = Outcome(
            sent.client, status, said.steps, said.train_loss, said.measured_peak_activation_bytes, said.measured_training_memory_bytes,
            payload=bytes(reply.blobs.get(PAYLOAD, b"")), labels=said.labels,
        )  # fmt: skip
        return DeviceAnswer(sent.round, outcome, total_s, min(said.ready_s, total_s), min(said.train_s, total_s), said.problem)

    def say(self, message: str) -> None:
        """Tell the user, in one line; a device's text may contain others, and codes of terminals."""
        self._say(printable(message, layout=""))

    def connected(self, clients: Sequence[int]) -> set[int]:
        """Return which of ``clients`` are connected."""
        nodes = self._link.nodes()
        return {client for client in clients if self._nodes.get(client) in nodes}


def _check_labels(labels: tuple[int, ...] | None, classes: int) -> None:
    """Raise :class:`WireError` unless ``labels`` are some of so many classes, ascending, or a device has said none."""
    if labels is None or are_labels(labels, classes):
        return
    listed = ", ".join(map(str, labels[:20])) or "none"
    raise WireError(f"labels: got {listed}; expected labels from 0 to {classes - 1}, each once, ascending")
