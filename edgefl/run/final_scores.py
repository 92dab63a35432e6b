"""The last evaluation of a run in detail: what the final models predict for each class, and how accurate they are for each client."""

import numpy as np
from torch import nn

from edgefl.client import evaluate
from edgefl.methods.networks import global_tier
from edgefl.records import Tier
from edgefl.report.evaluation import MOST_CLASSES, ClientScore, Evaluation
from edgefl.run.trained import Trained, evaluated_clients, of_clients


def final_scores(trained: Trained, simulated: bool = True) -> Evaluation | None:
    """Return the last evaluation; None without classes, with a loss of the user's own, or with nothing held out.

    The global model predicts all held-out samples. At most 100 clients, adversaries excluded, are evaluated on held-out samples with their
    own shares of labels; if clients have models of their own, the counts by class are sums over these clients. The data of real devices,
    which are not ``simulated``, are not known here.
    """
    run = trained.run
    test, classes = run.test_of(run.config.rounds), run.data.classes
    if run.criterion.loss is not None or not classes or not len(test):
        return None
    own, modules = of_clients(run), dict[Tier, nn.Module]()
    counts = np.zeros((classes, classes), np.int64)
    clients = []
    for client in evaluated_clients(run) if own or simulated else ():
        tier = run.plan.tier_of(client, trained.state.round)
        if tier is None or not len(split := run.clients.shards.test(client)):
            continue
        module = trained.module(tier, client) if run.method.personalised else modules.get(tier) or trained.module(tier)
        modules[tier] = module
        with evaluate.evaluating(f"client {client}, tier {tier.label}"):
            predicted = evaluate.classes_of(module, split)
        if own:
            np.add.at(counts, (split.y, predicted), 1)
        device = run.plan.class_plans_of(np.array([client]), trained.state.round)[0].device.name
        clients.append(ClientScore(client, device, tier.number, len(split), float((predicted == split.y).mean())))
    if not own:
        whole = global_tier(trained.run.method, trained.state.model)
        module = modules.get(whole) or trained.module(whole)
        with evaluate.evaluating("the global model"):
            np.add.at(counts, (test.y, evaluate.classes_of(module, test)), 1)
    labels = tuple(run.data.class_names) if len(run.data.class_names) == classes else tuple(map(str, range(classes)))
    confusion = tuple(map(tuple, counts.tolist())) if classes <= MOST_CLASSES else ()
    samples, right = counts.sum(1), counts.diagonal()
    return Evaluation(labels, tuple(samples.tolist()), tuple(right.tolist()), confusion, tuple(clients))
