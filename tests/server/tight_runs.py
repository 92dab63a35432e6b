"""Runs of one class of device that has as much memory as a test says, and clients trained in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from small_fleet import small, write_device, write_fleet

from edgefl.client.job import Job
from edgefl.engine.inline import InlineEngine
from edgefl.methods.networks import upload_shapes
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Cost, Outcome, Tier
from edgefl.rng import generator
from edgefl.run.run import Run
from edgefl.server.assign import PlanCosts, make_plan
from edgefl.wire.payload import decode, encode

BIG, HALF = Tier(1.0), Tier(0.5)
PARTS = (16, 8, 4, 2, 1)
Costs = Mapping[tuple[Tier, int | None], Cost]
"""(tier, samples at once or None) → cost."""


def prepared(
    folder: Path, memory_bytes: float = 1e9, method: str = "fedhm", tiers: tuple[float, ...] = (1.0, 0.5), **keys: Any
) -> Run:
    """Return a run of one class of device that has ``memory_bytes``."""
    write_device(folder, "board", training_bytes=float(memory_bytes))
    profile = write_fleet(folder, {"board": 1.0}, behaviour={})
    return small(profile, method=method, model="cnn-digits", tiers=tiers, **keys)


def planned(roomy: Run, costs: Costs, memory_bytes: float, order: tuple[Any, ...], tiers: tuple[Tier, ...] = (BIG, HALF)) -> Run:
    """Return the run on devices that have ``memory_bytes``, under another order; nothing is traced again."""
    fleet = roomy.fleet
    device = fleet.classes[0].device
    figure = device.memory.training_bytes.model_copy(update={"value": float(memory_bytes)})
    device = device.model_copy(update={"memory": device.memory.model_copy(update={"training_bytes": figure})})
    fleet = fleet.model_copy(update={"classes": (fleet.classes[0].model_copy(update={"device": device}),)})
    plan_costs = PlanCosts({tier: costs[tier, None] for tier in tiers}, split=lambda tier, parts: costs[tier, parts])
    plan = make_plan(replace(roomy.plan.population, fleet=fleet), plan_costs, roomy.plan.workload, order)
    return replace(roomy, plan=plan)


def cost_of(run: Run, tier: Tier, parts: int | None = None) -> Cost:
    """Return what a tier costs with so many samples at once."""
    training = run.clients.task.training
    return tier_cost(run.method, run.architecture, tier, replace(training, micro_batch=parts))


def trained(
    run: Run, client: int, micro_batch: int | None = None, tier: Tier = BIG, memory_bytes: float | None = None,
    recompute: tuple[str, ...] = (),
) -> tuple[Outcome, dict[str, torch.Tensor]]:  # fmt: skip
    """Return a client's outcome, and the tensors that it sends."""
    state = run.first_state()
    submodel = run.method.submodel(state, tier, generator(0, 1, "submodel"), client)
    job = Job(1, client, run.method, tier, encode(submodel.tensors), None, memory_bytes, micro_batch, recompute=recompute)
    ((_, found),) = InlineEngine(run.clients).map([job])
    sent = decode(found.payload, upload_shapes(run.method, run.architecture, tier), "it") if found.payload else {}
    return found, sent
