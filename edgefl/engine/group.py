"""The engine that trains clients of a tier together, in this process or in several.

Clients end where each ends alone, except for the order of sums in float32: a step's gradient differs by about 1e-6 of its largest entry.
"""

from __future__ import annotations

from edgefl.client.client import Clients
from edgefl.engine.inline import InlineEngine
from edgefl.engine.pool import PoolEngine
from edgefl.registry import engine

TOGETHER = 5
"""Most clients in one group: larger groups are no faster, and leave a second worker without clients."""


@engine("group", groups_clients=True, shares_memory=True)
def group(clients: Clients, workers: int) -> InlineEngine | PoolEngine:
    """Return an engine that trains up to :data:`TOGETHER` clients at once."""
    if workers == 1:
        return InlineEngine(clients, TOGETHER)
    return PoolEngine(clients.task, workers, data=clients.data, together=TOGETHER)
