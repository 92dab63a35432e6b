"""NumPy only: one round of OrigDrop, on the network of small_conv_by_hand.py (four channels at width 1): HeteroFL without a full client.

The server holds the first two channels, which client A (width 0.5, 3 samples) has too; client B (width 0.25, 5 samples) has the first.
The outputs of hidden layers are divided by the width while training; every entry is averaged over those who have it, each with the same
weight.
"""

import numpy as np
from small_conv_by_hand import cross_entropy, data, dense, descend

LR = 0.3
CHANNELS = {0.5: 2, 0.25: 1}
CLIENTS = {"A": (0.5, 3, 0.4), "B": (0.25, 5, 2.0)}  # width, samples, start of the data


def start():
    """Return the server's weights."""
    return {name: dense(4, 0.2)[name][index] for name, index in leading(0.5).items()}


def leading(width):
    """Return name → index of the slice that ``width`` has."""
    c = CHANNELS[width]
    return {
        "conv1.weight": np.s_[:c],
        "conv2.weight": np.s_[:c, :c],
        "conv2.bias": np.s_[:c],
        "fc.weight": np.s_[:, : 4 * c],
        "fc.bias": np.s_[:],
    }


def scaled(held, width):
    """Return the plain network that computes what the scaled one does."""
    return {name: tensor / width if name.startswith("conv") else tensor for name, tensor in held.items()}


def local(state, client):
    """Return what ``client`` sends."""
    width, samples, begin = CLIENTS[client]
    x, y = data(samples, begin)
    held = {name: state[name][index] for name, index in leading(width).items()}
    return descend(lambda p: cross_entropy(scaled(p, width), x, y), held, LR)


def round_of(state, clients):
    """Return the server's weights."""
    total = {name: np.zeros(tensor.shape) for name, tensor in state.items()}
    holders = {name: np.zeros(tensor.shape) for name, tensor in state.items()}
    for client in clients:
        sent = local(state, client)
        for name, index in leading(CLIENTS[client][0]).items():
            total[name][index] += sent[name]
            holders[name][index] += 1
    return {n: np.where(holders[n] > 0, total[n] / np.maximum(holders[n], 1), state[n]) for n in state}
