"""Flower's strategies and defences: server optimizers and robust aggregations of the same arrays give the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdam, FedAvg, FedAvgM, FedYogi
from flwr.server.strategy.aggregate import aggregate, aggregate_inplace, aggregate_krum, aggregate_median, aggregate_trimmed_avg

from edgefl.contrib.attacks.defences import expected_hostile
from edgefl.methods.averaging import WeightedSum
from edgefl.records import Place, Tier, Update
from edgefl.rng import generator
from edgefl.server.coordinates import Changes
from edgefl.server.defence import defence_named
from edgefl.server.optimizer import optimizer_named
from judges.verdict import EQUAL, Case, Judge, Verdict

Arrays = list[np.ndarray]
Results = list[tuple[Arrays, int]]
SHAPES = {"a": (5, 7), "b": (5,), "c": (3, 2, 2, 2)}
ROUNDS, CLIENTS = 5, (5, 6, 7, 10, 11, 20)
NEAR = 2e-6
"""Largest difference of two weights of about 1: float32 rounds them to 6e-8, and Flower sums in float32."""


def _arrays(rng: np.random.Generator, scale: float) -> Arrays:
    return [(scale * rng.standard_normal(shape)).astype(np.float32) for shape in SHAPES.values()]


def _clients(rng: np.random.Generator, start: Arrays, count: int, hostile: int = 0) -> Results:
    """Return the weights and samples of ``count`` clients near ``start``; the hostile ones are far away."""
    found = []
    for number in range(count):
        away = 3.0 if number < hostile else 0.0
        changes = _arrays(rng, 1.0 if number < hostile else 0.1)
        found.append(([a + b + np.float32(away) for a, b in zip(start, changes, strict=True)], int(rng.integers(1, 200))))
    return found


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in zip(SHAPES, arrays, strict=True)}


def _mean(results: Results) -> dict[str, torch.Tensor]:
    like = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    total = WeightedSum(like)
    for arrays, samples in results:
        for name, tensor in _tensors(arrays).items():
            total.add(name, tensor, float(samples))
    return total.mean(like)


def _as_fits(results: Results) -> Any:
    return [
        (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([a.copy() for a in arrays]), samples, {}))
        for arrays, samples in results
    ]


def _compared(ours: dict[str, torch.Tensor], theirs: Sequence[np.ndarray], when: str = "") -> Verdict:
    pairs = zip(ours.values(), theirs, strict=True)
    off = max(float(np.abs(a.double().numpy() - np.asarray(b, np.float64)).max()) for a, b in pairs)
    return EQUAL if off <= NEAR else Verdict("wrong", f"differs by {off:.2g}{when}")


def _average(other: Callable[[Results], Arrays], count: int) -> Verdict:
    rng = generator(0, "average", count)
    results = _clients(rng, _arrays(rng, 1.0), count)
    return _compared(_mean(results), other(results))


class Uncorrected(FedAdam):
    """FedAdam as its paper writes it: Flower's also corrects the bias of the moments, as Adam does, in its rate. That is divided out."""

    rate: float = 0.01

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Return the weights after a round."""
        self.eta = self.rate * (1 - self.beta_1 ** (server_round + 1.0)) / np.sqrt(1 - self.beta_2 ** (server_round + 1.0))
        return super().aggregate_fit(server_round, results, failures)


STRATEGIES: dict[str, tuple[Callable[..., FedAvg], dict[str, float], str, float | None]] = {
    "FedAvgM": (FedAvgM, {"server_learning_rate": 1.0, "server_momentum": 0.9}, "avgm", None),
    "FedAvgM, rate 0.5": (FedAvgM, {"server_learning_rate": 0.5, "server_momentum": 0.9}, "avgm", 0.5),
    "FedAdam": (Uncorrected, {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}, "adam(start=0)", None),
    "FedYogi": (FedYogi, {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}, "yogi(start=0)", None),
}


def _rounds(subject: str) -> Verdict:
    """Compare the weights after each of several rounds, in which the clients start from them."""
    kind, options, name, lr = STRATEGIES[subject]
    rng = generator(0, "rounds")
    theirs, memory = _arrays(rng, 1.0), dict[str, torch.Tensor]()
    ours, optimizer = _tensors(theirs), optimizer_named(name, lr)
    strategy = kind(initial_parameters=ndarrays_to_parameters(theirs), **options)
    for number in range(1, ROUNDS + 1):
        changes = _clients(rng, [np.zeros_like(a) for a in theirs], 6)

        def moved(arrays: Arrays, changes: Results = changes) -> Results:
            return [([a + b for a, b in zip(arrays, of, strict=True)], samples) for of, samples in changes]

        parameters, _ = strategy.aggregate_fit(number, _as_fits(moved(theirs)), [])
        mean = _mean(moved([tensor.numpy() for tensor in ours.values()]))
        ours, memory = optimizer.step(ours, mean, memory)
        assert parameters is not None
        theirs = parameters_to_ndarrays(parameters)
        if (found := _compared(ours, theirs, f" after round {number}")) != EQUAL:
            return found
    return EQUAL


def _defended(name: str, strength: float | None, other: Callable[[Results, float], Arrays], count: int, hostile: int) -> Verdict:
    rng = generator(0, "defence", count, hostile)
    start = _arrays(rng, 1.0)
    results, sent = _clients(rng, start, count, hostile), _tensors(start)
    places = {name: Place(name, tuple(slice(None) for _ in shape)) for name, shape in SHAPES.items()}
    updates = tuple(
        Update(i, Tier(1.0), _tensors(arrays), places, samples, sent=sent) for i, (arrays, samples) in enumerate(results)
    )
    left = defence_named(name, strength).defended(Changes(updates, sent))
    ours = _mean([([tensor.numpy() for tensor in update.tensors.values()], update.samples) for update in left])
    return _compared(ours, other(results, strength or 0.0))


def _trimmed(results: Results, share: float) -> Arrays:
    """Return the mean without as many values at each end as edgefl cuts off: it rounds their number up, Flower rounds it down."""
    count = len(results)
    cut = min(int(np.ceil(share * count - 1e-9)), (count - 1) // 2)
    return aggregate_trimmed_avg(results, (cut + 0.5) / count if 2 * cut + 1 < count else cut / count + 1e-9)


def _krum(results: Results, share: float) -> Arrays:
    return aggregate_krum(results, expected_hostile(share, len(results)), 0)


def _multi_krum(results: Results, share: float) -> Arrays:
    hostile = expected_hostile(share, len(results))
    return aggregate_krum(results, hostile, len(results) - hostile)


AVERAGES: dict[str, Callable[[Results], Arrays]] = {
    "FedAvg": aggregate,
    "FedAvg, in place": lambda results: aggregate_inplace(_as_fits(results)),
}
DEFENCES: dict[str, tuple[str, tuple[float | None, ...], Callable[[Results, float], Arrays]]] = {
    "median": ("median", (None,), lambda results, _: aggregate_median(results)),
    "trimmed mean": ("trimmed-mean", (0.1, 0.2, 0.25, 0.4), _trimmed),
    "Krum": ("krum", (0.1, 0.2, 0.4), _krum),
    "MultiKrum": ("multi-krum", (0.1, 0.2, 0.4), _multi_krum),
}


def cases(subject: str) -> Iterator[Case]:
    """Return the cases of a strategy or defence."""
    if subject in AVERAGES:
        for count in CLIENTS:
            yield Case(f"{count} clients", partial(_average, AVERAGES[subject], count))
    elif subject in STRATEGIES:
        yield Case(f"{ROUNDS} rounds", partial(_rounds, subject))
    else:
        name, strengths, other = DEFENCES[subject]
        for count in CLIENTS:
            for hostile in (0, 1, 2):
                for strength in strengths:
                    given = "" if strength is None else f", strength {strength:g}"
                    case = f"{count} clients, {hostile} hostile{given}"
                    yield Case(case, partial(_defended, name, strength, other, count, hostile))


JUDGE = Judge(
    "Flower's strategies and defences",
    "Averages, server optimizers and robust aggregations of `flwr` and of edgefl on the same arrays. Flower's FedAdam also corrects "
    "the bias of its moments, which Algorithm 2 of Reddi et al. does not: that is divided out. Both start the second moment at 0, "
    "Flower's form; edgefl's default is the paper's τ². Flower rounds the number of values that a trimmed mean cuts off down, "
    "and edgefl rounds it up: as many are cut here.",
    ("flwr",),
    lambda: [*AVERAGES, *STRATEGIES, *DEFENCES],
    cases,
    every=3,
)
