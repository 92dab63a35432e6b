"""The last evaluation of a run in detail: what the final models predict for each class, and how accurate they are for each client."""

from collections.abc import Iterator, Mapping
from operator import attrgetter

import numpy as np
from torch import nn

from edgefl.client import evaluate
from edgefl.methods.networks import global_tier
from edgefl.records import Tier
from edgefl.report.evaluation import MOST_CLASSES, ClientScore, Evaluation
from edgefl.run.trained import Trained, evaluated_clients, of_clients
from edgefl.util.machine import usable_threads


def final_scores(trained: Trained, simulated: bool = True) -> Evaluation | None:
    """Return the last evaluation; None without classes, with a loss of the user's own, or with nothing held out.

    The global model predicts all held-out samples. At most 100 clients that do as the server asks are evaluated on held-out samples with
    their own shares of labels; if clients have models of their own, the counts by class are sums over these clients. The data of real
    devices, which are not ``simulated``, are not known here.
    """
    run = trained.run
    test, classes = run.test_of(run.config.rounds), run.data.classes
    if run.criterion.loss is not None or not classes or not len(test):
        return None
    own = of_clients(run)
    asked = evaluated_clients(run) if own or simulated else ()
    judged = {client: tier for client in asked if (tier := run.plan.tier_of(client, trained.state.round)) is not None}
    counts, clients = np.zeros((classes, classes), np.int64), list[ClientScore]()
    for client, labels, predicted in (_by_client if own else _by_tier)(trained, judged):
        if own:
            np.add.at(counts, (labels, predicted), 1)
        device = run.plan.class_plans_of(np.array([client]), trained.state.round)[0].device.name
        clients.append(ClientScore(client, device, judged[client].number, len(labels), float((predicted == labels).mean())))
    if not own:
        whole = trained.module(global_tier(run.method, trained.state.model))
        with evaluate.evaluating("the global model"):
            np.add.at(counts, (test.y, evaluate.classes_of(whole, test, usable_threads())), 1)
    clients.sort(key=attrgetter("client"))
    names = tuple(run.data.class_names) if len(run.data.class_names) == classes else tuple(map(str, range(classes)))
    confusion = tuple(map(tuple, counts.tolist())) if classes <= MOST_CLASSES else ()
    samples, right = counts.sum(1), counts.diagonal()
    return Evaluation(
        names, tuple(samples.tolist()), tuple(right.tolist()), confusion, tuple(sorted(clients, key=lambda score: score.client))
    )


def _by_client(trained: Trained, tiers: Mapping[int, Tier]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each client with the labels of its held-out samples, and what its own model predicts, or its tier's with labels of its own."""
    run, shared = trained.run, dict[Tier, nn.Module]()
    for client, tier in tiers.items():
        if len(split := run.clients.shards.test(client)):
            module = trained.module(tier, client) if run.method.personalised else shared.get(tier) or trained.module(tier)
            shared[tier] = module
            with evaluate.evaluating(f"client {client}, tier {tier.label}"):
                yield client, split.y, evaluate.classes_of(module, split, usable_threads())


def _by_tier(trained: Trained, tiers: Mapping[int, Tier]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield as :func:`_by_client`, for models that clients share: each predicts a sample once, however many clients have it."""
    test, shards = trained.run.data.test, trained.run.clients.shards
    numbers = {client: shards.test_numbers(client) for client in tiers}
    for tier in dict.fromkeys(tiers.values()):
        of_tier = {client: numbers[client] for client in tiers if tiers[client] == tier and len(numbers[client])}
        if not of_tier:
            continue
        every = np.unique(np.concatenate([*of_tier.values()]))
        with evaluate.evaluating(f"tier {tier.label}"):
            predicted = evaluate.classes_of(trained.module(tier), test.taken(every), usable_threads())
        for client, own in of_tier.items():
            yield client, test.y[own], predicted[np.searchsorted(every, own)]
