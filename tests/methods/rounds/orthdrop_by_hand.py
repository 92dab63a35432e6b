"""NumPy only: one round of OrthDrop, on the network of small_conv_by_hand.py.

Client A (c = 1, 3 samples) trains the dense network, client B (c = 0.5, 5 samples) the first two of conv2's four kernels, at all channels.
The server multiplies B's factors out and averages, each client with the same weight.
"""

import numpy as np
from small_conv_by_hand import cross_entropy, data, dense, descend

LR = 0.3
DECAY = 0.2
CLIENTS = {"A": (1.0, 3, 0.4), "B": (0.5, 5, 2.0)}  # keep ratio, samples, start of the data


def start():
    """Return the server's weights; conv2's are no plain wave, whose unrolled matrix would have rank 2."""
    return {**dense(4, 0.2), "conv2.weight": 0.6 * np.sin(0.7 * np.arange(64.0) ** 2 + 0.3).reshape(4, 4, 2, 2)}


def first_kernels(state, count):
    """Return u (4 × count) and v (count × 16), the root of each singular value in both."""
    left, sigma, right = np.linalg.svd(state["conv2.weight"].reshape(4, 16), full_matrices=False)
    return left[:, :count] * np.sqrt(sigma[:count]), np.sqrt(sigma[:count])[:, None] * right[:count]


def multiplied(held):
    """Return the plain network of what a client holds."""
    if "u" not in held:
        return held
    rest = {name: tensor for name, tensor in held.items() if name not in ("u", "v")}
    return {**rest, "conv2.weight": (held["u"] @ held["v"]).reshape(4, 4, 2, 2)}


def download(state, client):
    """Return what ``client`` receives."""
    if CLIENTS[client][0] == 1.0:
        return dict(state)
    u, v = first_kernels(state, 2)
    return {name: tensor for name, tensor in state.items() if name != "conv2.weight"} | {"u": u, "v": v}


def local(state, client):
    """Return the plain network after one step; weight decay in the loss is the factors' alone."""
    _, samples, begin = CLIENTS[client]
    x, y = data(samples, begin)

    def loss(held):
        plain = multiplied(held)
        decay = DECAY / 2 * np.sum(plain["conv2.weight"] ** 2) if "u" in held else 0.0
        return cross_entropy(plain, x, y) + decay

    return multiplied(descend(loss, download(state, client), LR))


def round_of(state, clients):
    """Return the server's weights: the mean of the clients' plain networks."""
    sent = [local(state, client) for client in clients]
    return {name: sum(tensors[name] for tensors in sent) / len(sent) for name in state}
