"""Server states that no run made."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.server.state import ServerState


def server_state(round_: int = 1, tensors: dict[str, Tensor] | None = None, **fields: Any) -> ServerState:
    """Return a state after ``round_`` rounds whose model has ``tensors``."""
    model = GlobalState(Architecture("mlp", (1, 8, 8), 10), (Tier(1.0),), tensors or {})
    return ServerState(model, round=round_, **fields)
