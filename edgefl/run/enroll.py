"""The devices whose updates count: enrolled by their requests, and revoked."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgefl.errors import InputError
from edgefl.wire.device_keys import NAME, DeviceKeys, EnrolledDevice, Enrolment, changing


def enroll(keys: Path | str, requests: Sequence[Path | str], name: str | None = None) -> dict[str, str]:
    """Add devices to a keys file, which is made if there is none: all of them, or none after an error.

    Args:
        keys: the keys file (TOML), for ``fed_round(keys=…)``.
        requests: files that ``edgefl_client.py enroll`` wrote on the devices.
        name: name of the device, for one request; None: the names in the requests.

    Returns:
        The name of each device → its public key, in the order of the requests.

    Raises:
        InputError: a file is wrong, or a name or key is in use already. The same device with the same key is enrolled once.
    """
    if name is not None and (len(requests) != 1 or not NAME.fullmatch(name)):
        raise InputError(f"name: got {name!r} for {len(requests)} requests, expected one, and 1 to 64 of 0-9 A-Z a-z . _ -")
    found = {}
    with changing(Path(keys)) as known:
        for path in requests:
            request = Enrolment.of_file(Path(path))
            known = known.with_device(name or request.name, request.key)
            found[name or request.name] = str(request.key)
        known.write()
    return found


def revoke(keys: Path | str, device: str) -> None:
    """Revoke a device of a keys file, by its name or public key; InputError if there is none."""
    DeviceKeys.of(Path(keys))  # a missing file is an error, before a lock is made beside it
    with changing(Path(keys)) as known:
        known.without(device).write()


def enrolled(keys: Path | str) -> Mapping[str, EnrolledDevice]:
    """Return the devices of a keys file by name, the revoked ones too; InputError if it is missing or wrong."""
    return dict(sorted(DeviceKeys.of(Path(keys)).devices.items()))
