"""NumPy only: rounds of Per-FedAvg, FedFOMO and Clustered-FL from their equations, on the network of small_conv_by_hand.py."""

from functools import cache

import numpy as np
from small_conv_by_hand import cross_entropy, data, dense, descend, gradients, wave

CHANNELS = 4
CLIENTS = {"A": (3, 0.4), "B": (6, 2.0)}  # samples, start of the data
LR, ALPHA, VALIDATION = 0.2, 0.3, 0.5


def start():
    """Return the weights that the server begins with."""
    return dense(CHANNELS, 0.3)


def mean(models, counts):
    """Return Σ n_k w_k / Σ n_k."""
    return {name: sum(n * w[name] for n, w in zip(counts, models, strict=True)) / sum(counts) for name in models[0]}


# Per-FedAvg


def meta_step(w, client):
    """Return w − β∇f(w − α∇f(w, D), D'): both gradients at their own point, no second derivative."""
    samples, begin = CLIENTS[client]
    x, y = data(samples, begin)
    half = -(-samples // 2)  # an odd batch's halves share its middle sample
    inner = gradients(lambda p: cross_entropy(p, x[:half], y[:half]), w)
    moved = {name: tensor - ALPHA * inner[name] for name, tensor in w.items()}
    outer = gradients(lambda p: cross_entropy(p, x[-half:], y[-half:]), moved)
    return {name: tensor - LR * outer[name] for name, tensor in w.items()}


@cache
def per_fedavg():
    """Return what each client sends, and the server's weights after the round."""
    sent = {client: meta_step(start(), client) for client in CLIENTS}
    return sent, mean([sent[c] for c in CLIENTS], [CLIENTS[c][0] for c in CLIENTS])


def adapted(w, client, steps):
    """Return the weights after ``steps`` steps of rate α on all of the client's samples."""
    x, y = data(*CLIENTS[client])
    for _ in range(steps):
        w = descend(lambda p: cross_entropy(p, x, y), w, ALPHA)
    return w


# FedFOMO: client A has a model of its own and downloads three others.


JUDGED = [0, 1]  # ⌈0.5 · 3⌉ of its 3 samples: numbers ⌊0 · 3/2⌋ and ⌊1 · 3/2⌋


@cache
def others():
    """Return the models of clients 5, 6 and 7: two that do better on what A judges by, and one that does worse."""
    x, y = (part[JUDGED] for part in data(*CLIENTS["A"]))
    near = descend(lambda p: cross_entropy(p, x, y), start(), 0.5)
    far = descend(lambda p: cross_entropy(p, x, y), near, 0.8)
    crooked = {name: tensor + wave(tensor.shape, 0.9, 0.02) for name, tensor in near.items()}
    away = {name: 2 * start()[name] - tensor for name, tensor in far.items()}
    return {5: far, 6: crooked, 7: away}


@cache
def fomo():
    """Return the raw weights of the three models for client A, its model before training, and after one step."""
    x, y = data(*CLIENTS["A"])
    own = start()
    raw, differences = {}, {}
    for number, model in others().items():
        gain = cross_entropy(own, x[JUDGED], y[JUDGED]) - cross_entropy(model, x[JUDGED], y[JUDGED])
        differences[number] = {name: model[name] - own[name] for name in own}
        distance = np.sqrt(sum(np.sum(d**2) for d in differences[number].values()))
        raw[number] = gain / distance
    positive = {number: max(weight, 0.0) for number, weight in raw.items()}
    total = sum(positive.values())
    moved = dict(own)
    for number, weight in positive.items():
        for name in moved:
            moved[name] = moved[name] + weight / total * differences[number][name]
    return raw, moved, descend(lambda p: cross_entropy(p, x, y), moved, LR)


# Clustered-FL: four clients whose updates point two ways.

DIRECTIONS = {0: 1.0, 2: -0.9, 4: 1.2, 9: -1.1}
COUNTS = {0: 2, 2: 5, 4: 3, 9: 1}


def updates():
    """Return Δ by client: ± one direction, and something of the client's own."""
    return {
        client: {name: sign * wave(t.shape, 1.0, 0.3) + wave(t.shape, 2.0 + client, 0.1) for name, t in start().items()}
        for client, sign in DIRECTIONS.items()
    }


def norm(delta):
    """Return ‖Δ‖ over all tensors."""
    return np.sqrt(sum(np.sum(tensor**2) for tensor in delta.values()))


def opposed_classifiers():
    """Return Δ by client in two parts: of the layers before the classifier, as above, and of the classifier, which moves further.

    Clients 0 and 2 move the classifier one way, 4 and 9 the other way.
    """
    signs = {0: 1.0, 2: 1.0, 4: -1.0, 9: -1.0}
    deltas = updates()
    shared = {c: {n: t for n, t in delta.items() if not n.startswith("fc.")} for c, delta in deltas.items()}
    own = {c: {n: signs[c] * wave(t.shape, 0.7, 2.0) for n, t in start().items() if n.startswith("fc.")} for c in deltas}
    return shared, own


def partition(deltas):
    """Return the two groups of clients whose largest cosine across is smallest, by trying them all."""
    clients = sorted(DIRECTIONS)
    best = None
    for code in range(1, 2 ** (len(clients) - 1)):
        one = [c for i, c in enumerate(clients) if code >> i & 1]
        two = [c for c in clients if c not in one]
        across = [
            sum(np.sum(deltas[i][n] * deltas[j][n]) for n in deltas[i]) / (norm(deltas[i]) * norm(deltas[j]))
            for i in one
            for j in two
        ]
        if best is None or max(across) < best[0]:
            best = (max(across), one, two)
    return best


def weighted(clients, deltas):
    """Return Σ n_i Δ_i / Σ n_i over ``clients``."""
    return mean([deltas[c] for c in clients], [COUNTS[c] for c in clients])


def shifted(delta):
    """Return the first weights plus Δ; those that Δ does not have stay."""
    return {name: tensor + delta.get(name, 0.0) for name, tensor in start().items()}
