"""NumPy only: one round of Split-Mix, on the network of small_conv_by_hand.py: two base networks of width 0.5 (two channels).

Client A (tier 1, 3 samples) trains both bases, client B (tier 0.5, 5 samples) one; each base takes its own step of gradient descent.
"""

import numpy as np
from small_conv_by_hand import cross_entropy, data, dense, descend, logits

LR = 0.3
CLIENTS = {"A": (3, 0.4), "B": (5, 2.0)}  # samples, start of the data


def start():
    """Return the server's tensors: two bases with weights of their own."""
    return {f"base{k}.{name}": tensor for k in range(2) for name, tensor in dense(2, 0.2 + 2.7 * k).items()}


def base(state, number):
    """Return the weights of one base."""
    return {name.split(".", 1)[1]: tensor for name, tensor in state.items() if name.startswith(f"base{number}.")}


def round_of(state, trains):
    """Return the tensors after a round; ``trains`` is client → numbers of the bases that it trains."""
    after = dict(state)
    for number in range(2):
        who = [client for client, bases in trains.items() if number in bases]
        stepped = {}
        for client in who:
            x, y = data(*CLIENTS[client])
            stepped[client] = descend(lambda p, x=x, y=y: cross_entropy(p, x, y), base(state, number), LR)
        for name in base(state, number):
            if who:
                mean = sum(CLIENTS[c][0] * stepped[c][name] for c in who) / sum(CLIENTS[c][0] for c in who)
                after[f"base{number}.{name}"] = mean
    return after


def ensemble(state, count, x):
    """Return the mean of the logits of the first ``count`` bases."""
    total = np.zeros((len(x), 3))
    for number in range(count):
        total += logits(base(state, number), x) / count
    return total
