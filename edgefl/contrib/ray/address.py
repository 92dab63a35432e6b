"""Checks of the address of a Ray cluster: there is nothing, something else, or a cluster that accepts or refuses this process's token.

Ray itself retries for 20 seconds to two minutes in each of these cases, and then only says that it cannot connect.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
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
        raise ConfigError(f"ray_address: {address} cannot be reached ({first_sentence(str(error))}); {remedy}") from None
    with link, contextlib.suppress(OSError):
        if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
            return  # its first bytes are those of TLS
        link.settimeout(_REACH_S)
        link.sendall(_HELLO)
        if link.recv(9)[3:4] == _SETTINGS:
            return
    raise ConfigError(absent(cluster, "something else listens there"))


def check_token(cluster: Cluster, core: Any) -> None:
    """Raise :class:`ConfigError` if there is no cluster, or the tokens of the cluster and of this process do not agree.

    ``core`` is Ray's module in C++. Without a token it would end this process, without a message.
    """
    services: Any = importlib.import_module("ray._private.services")
    try:
        address = services.canonicalize_bootstrap_address(cluster.address)
    except (OSError, RuntimeError, ValueError) as error:  # some versions return None instead
        raise ConfigError(absent(cluster, str(error))) from None
    if address is None:
        raise ConfigError(absent(cluster, "no Ray runs on this computer"))
    tokens = core.AuthenticationTokenLoader.instance()
    if cluster.auth and not tokens.has_token(ignore_auth_mode=True):
        remedy = "copy ~/.ray/auth_token of the head node here, or give --no-ray-auth if the cluster was started without tokens"
        raise ConfigError(f"ray_auth: this computer has no token for the Ray cluster at {cluster.address}; {remedy}")
    if (refusal := _refusal(cluster, core, address)) is not None:
        raise ConfigError(_refused(cluster, refusal))
    if not cluster.auth:
        return
    # A cluster without tokens accepts every one. Its nodes then cannot call this process, which demands one.
    with changed_environment({"RAY_AUTH_TOKEN": secrets.token_hex(32)}):
        tokens.reset_cache()
        accepts_all = _refusal(cluster, core, address) is None
    tokens.reset_cache()
    if accepts_all:
        reason = f"the Ray cluster at {cluster.address} was started without tokens"
        raise ConfigError(f"ray_auth: {reason}; give --no-ray-auth, or start its nodes with RAY_AUTH_MODE=token")


def _refusal(cluster: Cluster, core: Any, address: str) -> str | None:
    """Return what the cluster says against this process's token; None: it accepts the token."""
    exceptions: Any = importlib.import_module("ray.exceptions")
    try:
        with silent((STDERR,)):
            core.GcsClient(address=address)
    except exceptions.AuthenticationError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds, and says no more than their text
        raise ConfigError(absent(cluster, str(error))) from None
    return None


@contextlib.contextmanager
def changed_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set ``variables`` within the block: Ray reads its settings from there when it is imported, and when it starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def absent(cluster: Cluster, why: str) -> str:
    """Return the message that there is no cluster."""
    remedy = (
        "start one with 'ray start --head' here, give --ray-address HOST:PORT, or --ray-address local to start one for this run"
    )
    return f"ray_address: found no Ray cluster at {cluster.address} ({first_sentence(why)}); {remedy}"


def no_node(cluster: Cluster) -> str:
    """Return the message that the cluster is there, and that this computer is none of its nodes."""
    remedy = f"run 'ray start --address {cluster.address}' here first, or edgefl on a node"
    return f"ray_address: this computer is not a node of the Ray cluster at {cluster.address}; {remedy}"


def _refused(cluster: Cluster, why: str) -> str:
    if cluster.auth:
        answer, remedy = "refuses this computer's token", "copy ~/.ray/auth_token of the head node here"
    else:
        answer, remedy = "wants a token", "leave out --no-ray-auth, with ~/.ray/auth_token of the head node here"
    return f"ray_auth: the Ray cluster at {cluster.address} {answer} ({first_sentence(why)}); {remedy}"


def first_sentence(text: str) -> str:
    """Return the first sentence of what Ray says, or its beginning."""
    return text.strip().partition("\n")[0].partition(". ")[0][:200]
