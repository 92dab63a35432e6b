"""An update on its way out of a client: it passes the stages of the chain, the last of which encodes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from edgefl.client.objective import MEMORY
from edgefl.client.stage import AtClient, Leaving, Stage
from edgefl.methods.state import Shape, Tensors
from edgefl.wire.update_content import too_large

if TYPE_CHECKING:
    from edgefl.client.job import PreparedJob

STORED = "stage:"
"""Prefix of what stages store on a client, before the stage's name."""


def first_memory(stages: Iterable[Stage], shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Return what ``stages`` store on a client before its first round, by prefixed name."""
    return {f"{STORED}{stage.name}:{key}": tensor for stage in stages for key, tensor in stage.first_memory(shapes).items()}


def through(stages: Sequence[Stage], leaving: Leaving, seed: int, prepared: PreparedJob) -> tuple[Leaving, dict[str, Tensor]]:
    """Return an update after it has passed ``stages``, and what they store on the client, by prefixed name."""
    stored: dict[str, Tensor] = {}
    job, memory, departs = prepared.job, prepared.memory, prepared.conduct is not None
    for stage in stages:
        prefix = f"{STORED}{stage.name}:"
        of_stage = {name.removeprefix(prefix): tensor.cpu() for name, tensor in memory.items() if name.startswith(prefix)}
        client = AtClient(seed, job.round, job.client, job.handed.get(stage.name), departs)
        leaving = stage.leave(replace(leaving, memory=of_stage), client)
        stored |= {prefix + name: tensor for name, tensor in leaving.memory.items()}
    return leaving, stored


def unsendable(leaving: Leaving) -> bool:
    """Whether a value of an update is NaN or too large to be sent."""
    return any(too_large(tensor.numpy()) is not None for tensor in leaving.tensors.values())


def personal_in(stored: Tensors) -> dict[str, Tensor]:
    """Return the personal tensors among those that a client stored, without those of its objective and of stages."""
    return {name: tensor for name, tensor in stored.items() if not name.startswith((MEMORY, STORED))}
