"""The membership attack: a sample on which the final model has a small loss was probably trained with.

Yeom et al. 2018, Privacy Risk in Machine Learning. The threshold is chosen on half of the samples, and judged on the other half. Whatever
an attack reaches bounds the privacy of a training from below: with ε, at most e^ε as many members as others are taken for members, and the
reverse (δ = 0). Limits of shares are those of Clopper and Pearson.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from edgefl.client.criterion import Criterion
from edgefl.client.evaluate import BATCH_SIZE, outputs
from edgefl.contrib.audit.estimate import CONFIDENCE
from edgefl.data.split import Split
from edgefl.rng import generator
from edgefl.run.trained import Trained, evaluated_clients, of_clients

MOST = 5000
"""At most so many samples of either kind are asked for."""


@dataclass(frozen=True)
class Membership:
    """The success of the attack.

    Attributes:
        members, others: how many samples of either kind it was judged on.
        auc: chance that a member has a smaller loss than another sample, from all samples; 0.5 by guessing.
        told: share of members taken for members, on the second half of the samples.
        mistaken: share of other samples taken for members.
        epsilon_low: no training with a smaller ε allows these shares (99 % confidence).
    """

    members: int
    others: int
    auc: float
    told: float
    mistaken: float
    epsilon_low: float

    @property
    def right(self) -> float:
        """Share of right guesses, members and others counting alike; 0.5 by guessing."""
        return (self.told + 1 - self.mistaken) / 2


def attacked(trained: Trained, seed: int) -> Membership:
    """Return what the attack on the final model of a run reaches."""
    rng = generator(seed, "membership")
    members, others = (rng.permutation(np.concatenate(values))[:MOST] for values in zip(*_losses(trained), strict=True))
    return judged(members, others)


def judged(members: np.ndarray, others: np.ndarray) -> Membership:
    """Return what thresholds of the losses (n,) of members and others reach; both are in random order.

    >>> attack = judged(np.zeros(200), np.ones(200))
    >>> attack.auc, attack.right, round(attack.epsilon_low, 1)
    (1.0, 1.0, 2.8)
    """
    from scipy.stats import mannwhitneyu

    cut = _threshold(members[::2], others[::2])
    caught, mistaken = members[1::2] <= cut, others[1::2] <= cut
    auc = float(mannwhitneyu(others, members).statistic) / (len(members) * len(others))
    pairs = (caught, mistaken), (~mistaken, ~caught)
    low = max(0.0, *(math.log(max(_limits(one)[0], 1e-300) / _limits(other)[1]) for one, other in pairs))
    return Membership(len(caught), len(mistaken), auc, float(caught.mean()), float(mistaken.mean()), low)


def _threshold(members: np.ndarray, others: np.ndarray) -> float:
    """Return the loss at or below which most more members than others are, as shares."""
    cuts = np.unique(members)
    caught = np.searchsorted(np.sort(members), cuts, side="right") / len(members)
    mistaken = np.searchsorted(np.sort(others), cuts, side="right") / len(others)
    return float(cuts[np.argmax(caught - mistaken)])


def _limits(hits: np.ndarray) -> tuple[float, float]:
    """Return the limits of the share of ``hits``. Each is wrong in a quarter of what :data:`CONFIDENCE` allows: four of them hold."""
    from scipy.special import betaincinv

    count, total, wrong = int(hits.sum()), len(hits), (1 - CONFIDENCE) / 4
    low = float(betaincinv(count, total - count + 1, wrong)) if count else 0.0
    return low, float(betaincinv(count + 1, total - count, 1 - wrong)) if count < total else 1.0


def _losses(trained: Trained) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the losses of samples that a model was trained with, and of held-out samples: a pair for each model."""
    run = trained.run
    clients, criterion, shards = evaluated_clients(run), run.criterion, run.clients.shards
    shared = None if run.method.personalised else trained.module(max(run.tiers))
    for client in clients:
        tier = run.plan.tier_of(client, trained.state.round) or run.tiers[-1]
        module = shared if shared is not None else trained.module(tier, client)
        if len(trained_on := shards.train(client)):
            held_out = shards.test(client) if of_clients(run) else run.test.at(np.arange(0))
            yield losses(module, trained_on, criterion), losses(module, held_out, criterion)
    if shared is not None and not of_clients(run):
        yield np.empty(0), losses(shared, run.test, criterion)


def losses(module: nn.Module, split: Split, criterion: Criterion) -> np.ndarray:
    """Return the loss of each sample of ``split``: (n,) float64."""
    if not len(split):
        return np.empty(0)
    predicted, y = torch.from_numpy(outputs(module, split.taken().x, BATCH_SIZE)), torch.from_numpy(np.array(split.y))
    compare = criterion.loss or nn.functional.cross_entropy
    return np.array([float(compare(predicted[i : i + 1], y[i : i + 1])) for i in range(len(y))], dtype=np.float64)
