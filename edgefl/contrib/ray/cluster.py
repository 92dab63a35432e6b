"""Connecting to a Ray cluster, or starting one on this computer, and what is known of its nodes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import secrets
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.contrib.ray.address import absent, changed_environment, check_listens, check_token, first_sentence, no_node
from edgefl.engine.contract import Cluster
from edgefl.errors import ConfigError
from edgefl.util.machine import usable_threads
from edgefl.util.scratch import scratch_folder

_QUIET: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or Ray warns that it will not hide graphics cards some day
}


@dataclass(frozen=True)
class NodePlace:
    """Room for one actor: a node, or the part of a node that belongs to one of its graphics cards.

    Attributes:
        node: Ray's name of the node.
        title: the node's address, for messages.
        slots: how many clients train there at a time; Ray's processors of the actor.
        card: number of the graphics card among those of the node; None: clients train on processors.
    """

    node: str
    title: str
    slots: int
    card: int | None = None


@contextlib.contextmanager
def connected(cluster: Cluster, workers: int) -> Iterator[Any]:
    """Yield Ray's module, connected to ``cluster``; ``workers`` are the slots of one that is started here (0: one for each core).

    Raises:
        ConfigError: Ray is not installed, the address cannot be reached, no cluster is there, or it refuses this process's token.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("engine: ray needs Ray, which is not installed; run pip install 'edgefl-sim[ray]'")
    local = cluster.address == "local"
    with contextlib.ExitStack() as stack:
        stack.enter_context(changed_environment(_variables(cluster)))
        stack.enter_context(_signals())
        options: dict[str, Any] = {"address": cluster.address}
        if local:
            folder = stack.enter_context(scratch_folder())
            options |= {"num_cpus": workers or usable_threads(), "include_dashboard": False, "_temp_dir": str(folder)}
        elif cluster.address != "auto":
            check_listens(cluster)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray

            core: Any = importlib.import_module("ray._raylet")
            core.Config.initialize("")  # a process that has imported Ray before has other settings in its memory
            core.AuthenticationTokenLoader.instance().reset_cache()
            stack.enter_context(_silent())
            if not local:
                check_token(cluster, core)
            stack.callback(ray.shutdown)
            try:
                ray.init(**options, log_to_driver=False, logging_level=logging.CRITICAL)
            except OSError as error:
                if not local:  # the cluster has just answered
                    raise ConfigError(no_node(cluster)) from None
                if isinstance(error, ConnectionError | TimeoutError):
                    raise ConfigError(absent(cluster, str(error))) from None
                where = f"Ray cannot run in {folder} ({first_sentence(str(error))})"
                raise ConfigError(f"ray_address: {where}; set TMPDIR to a folder with a shorter name and enough room") from None
            except (ValueError, RuntimeError) as error:
                raise ConfigError(absent(cluster, str(error))) from None
        yield ray


def places(ray: Any, cards: bool) -> list[NodePlace]:
    """Return the places of the live nodes; ``cards``: only graphics cards, which share the slots of their node evenly."""
    live = []
    for node in ray.nodes():
        resources = node.get("Resources", {})
        slots = int(resources.get("CPU", 0))
        if not node["Alive"] or not slots:
            continue
        title = f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']})"
        if cards:
            count = int(resources.get("GPU", 0))
            live += [NodePlace(node["NodeID"], title, max(1, slots // count), card) for card in range(count)]
        else:
            live.append(NodePlace(node["NodeID"], title, slots))
    return live


def _variables(cluster: Cluster) -> dict[str, str]:
    variables = {**_QUIET, "RAY_AUTH_MODE": "token" if cluster.auth else "disabled"}
    if cluster.auth and cluster.address == "local" and not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        variables["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # Ray would write a new one to the user's home
    return variables


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Restore the handling of SIGTERM after the block: Ray replaces it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep Ray from printing the deaths of processes to standard output, as it does even if no logs are wanted."""
    worker: Any = importlib.import_module("ray._private.worker")
    before, worker._worker_logs_enabled = worker._worker_logs_enabled, False
    try:
        yield
    finally:
        worker._worker_logs_enabled = before
