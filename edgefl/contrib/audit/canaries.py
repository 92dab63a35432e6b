"""The scores of canaries that take the way of a run's clients: its clipping and its noise, with new random numbers.

No network is trained. What other clients send is known to the attacker of the definition, who subtracts it, so canaries are alone in the
sums. They are twice as long as the bound, so that the clipping has work. Each takes part in every round, as the accountant assumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.parts import trained_shapes
from edgefl.client.per_sample import StepNoise, per_sample
from edgefl.client.stage import AtClient, Leaving, Stage, StagePlace, TierSums, Turn
from edgefl.client.stages.clip import Clip
from edgefl.methods.tier_sum import TierSum, folds
from edgefl.records import Batch, Submodel, Tier, Update
from edgefl.rng import generator
from edgefl.run.run import Run
from edgefl.server.exchange import Exchange, ExchangeRules, added
from edgefl.server.state import ServerState

LENGTH = 2.0
"""Length of a canary before clipping, in bounds."""


@dataclass(frozen=True)
class Canaries:
    """So many random directions, with a random sign each.

    Attributes:
        count: k.
        seed: of the directions and of all noise; another one than the run's.
    """

    count: int
    seed: int

    def sign(self, number: int) -> int:
        """Return whether a canary adds (1) or subtracts (−1) its direction."""
        return int(generator(self.seed, number, "sign").integers(2)) * 2 - 1

    def direction(self, number: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return name → the part of a canary's direction, float32; all parts together have the length 1."""
        rng = generator(self.seed, number, "canary")
        parts = {name: torch.from_numpy(rng.standard_normal(tuple(shape), dtype=np.float32)) for name, shape in shapes.items()}
        length = sum(float(part.double().square().sum()) for part in parts.values()) ** 0.5
        return {name: part / length for name, part in parts.items()}

    def score(self, number: int, released: Mapping[str, Tensor]) -> float:
        """Return s·⟨c, released⟩ of a canary."""
        parts = self.direction(number, {name: tuple(part.shape) for name, part in released.items()})
        return self.sign(number) * sum(float((part * released[name]).sum()) for name, part in parts.items())

    def tiers(self, run: Run) -> list[Tier]:
        """Return the tier of each canary, drawn by the tiers' shares of the clients."""
        shares = run.plan.shares()
        odds = np.array(list(shares.values()))
        drawn = generator(self.seed, "tiers").choice(len(odds), self.count, p=odds / odds.sum())
        return [list(shares)[number] for number in drawn]


def central(run: Run, state: ServerState, canaries: Canaries) -> np.ndarray:
    """Return the scores of clients in the sums to which the server adds noise, over all rounds: (k,) float64."""
    scores, tiers = np.zeros(canaries.count), canaries.tiers(run)
    clip = next(stage for stage in run.chain.stages if isinstance(stage, Clip))
    stages = [stage for stage in run.chain.stages if stage.place != StagePlace.DECODED]
    for number in range(run.config.rounds):
        turn = _turn(run, state, canaries, number)
        bounds = {tier: clip.bound(state.memory, tier) for tier in run.plan.shares()}
        sums: dict[Tier, TierSum] = {}
        added(run.method, state.model, _admitted(turn, stages, canaries, tiers, bounds), sums)
        released = _released(turn, run.chain.summed(sums, turn))
        scores += [canaries.score(j, released(tier)) / bounds[tier] for j, tier in enumerate(tiers)]
    return scores


def local(run: Run, state: ServerState, canaries: Canaries, clip: float) -> np.ndarray:
    """Return the scores of uploads to which clients add noise, over all rounds: (k,) float64."""
    scores, tiers = np.zeros(canaries.count), canaries.tiers(run)
    stages = [stage for stage in run.chain.at_clients if stage.place != StagePlace.DECODED]
    for number in range(run.config.rounds):
        turn = _turn(run, state, canaries, number)
        for j, tier in enumerate(tiers):
            submodel, shapes = turn.submodel(tier), turn.shapes(tier)
            leaving = Leaving(_sent(canaries, j, submodel, shapes, clip), submodel.tensors)
            for stage in stages:
                leaving = stage.leave(leaving, AtClient(canaries.seed, turn.number, j))
            scores[j] += canaries.score(j, _changes(leaving.tensors, submodel)) / clip
    return scores


def example(run: Run, canaries: Canaries, clip: float, noise_multiplier: float) -> np.ndarray:
    """Return the scores of samples in the steps of DP-SGD, over all epochs of all rounds: (k,) float64.

    The network is a stand-in of as many parameters as that of the largest tier. The gradient of its loss is the sample itself.
    """
    shapes = trained_shapes(run.method, run.architecture, max(run.tiers))
    size = sum(torch.Size(shape).numel() for shape in shapes.values())
    network: nn.Module = nn.Linear(size, 1, bias=False)
    weight = network.get_parameter("weight")
    loss = per_sample(lambda module, batch: module(batch.x).sum(), clip)
    seed = int(generator(canaries.seed, "privacy").integers(2**63))
    noise, scores = StepNoise(noise_multiplier * clip, torch.Generator().manual_seed(seed)), np.zeros(canaries.count)
    training = run.clients.task.training
    for epoch in range(run.config.rounds * training.epochs):
        order = generator(canaries.seed, epoch, "shuffle").permutation(canaries.count)
        for chosen in np.array_split(order, -(-canaries.count // training.batch_size)):
            x = torch.stack([canaries.sign(j) * LENGTH * clip * canaries.direction(j, {"w": (size,)})["w"] for j in chosen])
            network.zero_grad()
            loss(network, Batch(x, torch.zeros(len(x), 1))).backward()
            noise.add(network, len(x))
            assert weight.grad is not None
            released = weight.grad[0].double() * len(x) / clip
            scores[chosen] += [canaries.score(j, {"w": released}) for j in chosen]
    return scores


def _turn(run: Run, state: ServerState, canaries: Canaries, number: int) -> Turn:
    exchange = Exchange(run.method, replace(state, round=number), ExchangeRules(canaries.seed, run.chain), run.config.clients)
    for tier in run.plan.shares():
        exchange.send(0, tier)  # made once
    return exchange.turn


def _sent(
    canaries: Canaries, number: int, submodel: Submodel, shapes: Mapping[str, tuple[int, ...]], bound: float
) -> dict[str, Tensor]:
    """Return what a canary sends: what it received, and its direction."""
    factor = canaries.sign(number) * LENGTH * bound
    change = {name: factor * part for name, part in canaries.direction(number, shapes).items()}
    return {name: submodel.tensors[name] + part if name in submodel.tensors else part for name, part in change.items()}


def _admitted(
    turn: Turn, stages: list[Stage], canaries: Canaries, tiers: list[Tier], bounds: Mapping[Tier, float]
) -> Iterator[Update]:
    """Yield the updates of canaries as the server admits them."""
    for j, tier in enumerate(tiers):
        submodel = turn.submodel(tier)
        tensors = _sent(canaries, j, submodel, turn.shapes(tier), bounds[tier])
        update = Update(j, tier, tensors, submodel.places, 1, start=submodel.tensors)
        for stage in stages:
            update = stage.admit(update, turn)
        yield update


def _released(turn: Turn, summed: TierSums) -> Callable[[Tier], dict[str, Tensor]]:
    """Return tier → what the server releases of its clients' changes, by the names of its tensors.

    A method that averages the entries of its state releases the sum of all tiers for each entry.
    """
    sums = {}
    for tier, total in summed.items():
        begun = turn.submodel(tier).tensors
        parts = {name: part.value() for name, part in total.parts().items()}
        sums[tier] = {name: part - total.weight * begun[name].double() if name in begun else part for name, part in parts.items()}
    if not folds(turn.method):
        return sums.__getitem__
    entries: dict[str, Tensor] = {}
    for tier, changes in sums.items():
        for name, change in changes.items():
            place = turn.submodel(tier).places[name]
            whole = entries.setdefault(place.target, torch.zeros(turn.model.tensors[place.target].shape, dtype=torch.float64))
            whole[place.index] += change

    def of_tier(tier: Tier) -> dict[str, Tensor]:
        places = turn.submodel(tier).places
        return {name: entries[places[name].target][places[name].index] for name in sums[tier]}

    return of_tier


def _changes(tensors: Mapping[str, Tensor], submodel: Submodel) -> dict[str, Tensor]:
    begun = submodel.tensors
    return {name: t.double() - begun[name].double() if name in begun else t.double() for name, t in tensors.items()}
