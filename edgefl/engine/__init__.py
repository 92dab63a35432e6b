"""What runs clients: this process, several, or a process for each client; each client alone, or several of a tier together.

The contract is :mod:`edgefl.engine.contract`. Importing this package does not import torch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from edgefl.engine.contract import Capabilities, Engine, in_order
from edgefl.registry import engines

if TYPE_CHECKING:
    from edgefl.client.client import Clients

__all__ = ["Capabilities", "Engine", "in_order", "open_engine", "prepare_workers"]


def prepare_workers(name: str | None, workers: int, enforce: str) -> None:
    """Start the process that workers are forked from if these settings need workers, or may; do not wait for it.

    Called early, it imports torch in a process of its own while this one prepares a run.
    """
    if workers > 1 or name not in (None, "inline") or enforce == "hard":
        from edgefl.engine.fork_server import warm

        warm(workers)


def open_engine(name: str, workers: int, clients: Clients) -> AbstractContextManager[Engine]:
    """Return the engine ``name`` as a context manager that stops its workers.

    With ``clients.task.enforce`` "hard" it is the pool, whatever the name: every client is a process of its own.

    Raises:
        UnknownNameError: there is no such engine.
    """
    opened: AbstractContextManager[Engine] = engines.load("pool" if clients.task.enforce == "hard" else name)(clients, workers)
    return opened
