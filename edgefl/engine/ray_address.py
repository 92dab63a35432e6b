"""What is at the address of a Ray cluster: nothing, something else, or a cluster that accepts or refuses this process's token.

Ray itself retries for 20 seconds to two minutes in each of these cases, and then only says that it cannot connect.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
from typing import Any

from edgefl.engine.contract import Cluster
from edgefl.errors import ConfigError
from edgefl.util.silence import STDERR, silent

_REACH_S = 5.0
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
"""The first bytes of a client of HTTP/2, which Ray speaks: a fixed text, and settings without any."""
_SETTINGS = b"\4"
"""The kind of the first frame with which a server of HTTP/2 answers."""


def check_listens(cluster: Cluster) -> None:
    """Raise :class:`ConfigError` if the address is no HOST:PORT, cannot be reached, or something else than Ray answers there."""
    address = cluster.address
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "//" in address:
        raise ConfigError(f"ray_address: got {address!r}, expected auto, local or HOST:PORT of the cluster's head")
    try:
        link = socket.create_connection((host.strip("[]"), int(port)), _REACH_S)
    except (OSError, OverflowError) as error:
        remedy = "start the head of the cluster there with 'ray start --head', or check address, network and firewall"
        raise ConfigError(f"ray_address: {address} cannot be reached ({first_line(str(error))}); {remedy}") from None
    with link, contextlib.suppress(OSError):
        if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
            return  # its first bytes are those of TLS
        link.settimeout(_REACH_S)
        link.sendall(_HELLO)
        if link.recv(9)[3:4] == _SETTINGS:
            return
    raise ConfigError(absent(cluster, "something else listens there"))


def check_token(cluster: Cluster, core: Any) -> None:
    """Raise :class:`ConfigError` if there is no cluster, or it refuses this process's token; ``core`` is Ray's module in C++."""
    services: Any = importlib.import_module("ray._private.services")
    exceptions: Any = importlib.import_module("ray.exceptions")
    address = services.canonicalize_bootstrap_address(cluster.address)
    if address is None:
        raise ConfigError(absent(cluster, "no Ray runs on this computer"))
    try:
        with silent((STDERR,)):
            core.GcsClient(address=address)
    except exceptions.AuthenticationError as error:
        raise ConfigError(_refused(cluster, str(error))) from None
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds, and says no more than their text
        raise ConfigError(absent(cluster, str(error))) from None


def absent(cluster: Cluster, why: str) -> str:
    """Return the message that there is no cluster."""
    remedy = (
        "start one with 'ray start --head' here, give --ray-address HOST:PORT, or --ray-address local to start one for this run"
    )
    return f"ray_address: found no Ray cluster at {cluster.address} ({first_line(why)}); {remedy}"


def _refused(cluster: Cluster, why: str) -> str:
    if cluster.auth:
        told, remedy = "refuses this computer's token", "copy ~/.ray/auth_token of the head node here"
    else:
        told, remedy = "wants a token", "leave out --no-ray-auth, with ~/.ray/auth_token of the head node here"
    return f"ray_auth: the Ray cluster at {cluster.address} {told} ({first_line(why)}); {remedy}"


def first_line(text: str) -> str:
    """Return the first sentence of what Ray says, or its beginning."""
    return text.strip().partition("\n")[0].partition(". ")[0][:200]
