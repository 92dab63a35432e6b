"""The devices of a run: what each says of itself, and which client of the run it is."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from edgefl.errors import CheckpointError, ConfigError, WireError
from edgefl.util.files import write_json
from edgefl.util.validation import explain
from edgefl.wire.update_file import MAX_COUNT

MOST = 1 << 62
"""No number of a device is larger: every one up to it is a float, too."""
_Text = Annotated[str, Field(max_length=200)]
_Count = Annotated[int, Field(ge=0, le=MOST)]
_Key = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]


@dataclass(frozen=True)
class Device:
    """A device's description of itself.

    Attributes:
        key: a random number in hexadecimal digits that the device has drawn once and stored.
        device: the name of its profile, one of the run's fleet.
        samples: how many training samples it has.
        trainer: what it trains with, onnxruntime or torch.
        client: the number that its owner wants it to have; None: any of its class.
        memory_bytes: what its owner allows for training; None: no limit.
        setups: the hashes of the training graphs that it has stored.
        versions: of Python, of its libraries, and the kind of its processor.
        problem: why it cannot train, such as missing data; else empty.
    """

    key: _Key
    device: _Text
    samples: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    trainer: Literal["onnx", "torch"]
    client: _Count | None = None
    memory_bytes: _Count | None = None
    setups: tuple[_Key, ...] = ()
    versions: dict[str, _Text] = field(default_factory=dict)
    problem: Annotated[str, Field(max_length=2000)] = ""

    @classmethod
    def read(cls, fields: Any) -> "Device":
        """Return the device that ``fields`` describe; raise :class:`WireError` if they do not."""
        try:
            return _DEVICE.validate_python(fields)
        except ValidationError as error:
            problems = "; ".join(explain(problem, cls.__dataclass_fields__) for problem in error.errors())
            raise WireError(f"the answer of a device cannot be read: {problems}") from None


_DEVICE = TypeAdapter(Device)


class Roster:
    """Which device is which client, stored in the run's folder: a resumed run gives a device its number again.

    The run's population says which clients have which device. A device gets the first free number of its class, so that the simulation of
    the same configuration has the same devices.
    """

    def __init__(self, path: Path, classes: Sequence[str], run: str) -> None:
        """Read ``path`` if it is there; ``classes`` are the names of the clients' devices, ``run`` names a new run."""
        self._path, self._classes = path, classes
        self.run, self.devices = run, dict[int, Device]()
        if path.exists():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                self.run = str(stored["run"])
                self.devices = {int(client): Device.read(row) for client, row in stored["devices"].items()}
            except (ValueError, KeyError, TypeError, AttributeError, WireError) as error:
                raise CheckpointError(f"{path}: not a list of devices ({error}); restore it, or start a new run") from None

    def admit(self, device: Device) -> int:
        """Return the client that ``device`` is; raise :class:`ConfigError` if the run has no place for it."""
        if problem := device.problem or ("" if device.samples else "it has no samples"):
            raise ConfigError(f"device {device.key[:8]}: {problem}")
        earlier = next((client for client, known in self.devices.items() if known.key == device.key), None)
        if earlier is not None and device.client in (None, earlier) and self._classes[earlier] == device.device:
            client = earlier
        else:
            client = self._place(device)
        if self.devices.get(client) != device:
            self.devices = {n: known for n, known in self.devices.items() if known.key != device.key} | {client: device}
            write_json(
                self._path, {"run": self.run, "devices": {str(n): asdict(known) for n, known in sorted(self.devices.items())}}
            )
        return client

    def _place(self, device: Device) -> int:
        of_class = [client for client, name in enumerate(self._classes) if name == device.device]
        free = [client for client in of_class if client not in self.devices]
        wanted = free if device.client is None else [client for client in free if client == device.client]
        if wanted:
            return wanted[0]
        who = f"device {device.key[:8]} ({device.device}{'' if device.client is None else f', client {device.client}'})"
        if not of_class:
            raise ConfigError(
                f"{who}: the fleet of the run has {', '.join(sorted(set(self._classes)))}; give it one of these as device"
            )
        taken = ", ".join(map(str, of_class))
        raise ConfigError(
            f"{who}: the run has no free client for it: {device.device} is client {taken}; give more --clients, or other shares"
        )
