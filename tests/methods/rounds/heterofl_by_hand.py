"""NumPy only: one round of HeteroFL with clipped gradients, on the network of small_conv_by_hand.py.

Client A has width 1 and labels 0 and 2, client B width 0.25 and all labels. Both take two steps on all of their samples. The outputs of
hidden layers are divided by the width while training. A logit of a label that a client does not have is 0 in its loss. A step's gradient,
of all tensors together, is scaled down to the norm 1; then decay is added, and momentum takes the step. Every entry is averaged over the
clients that have it, and the rows of the classifier over those that have samples of the row's label.
"""

import numpy as np
from small_conv_by_hand import LABELS, dense, gradients, log_softmax, logits, wave

LR, MOMENTUM, DECAY, BOUND, STEPS = 0.3, 0.9, 0.02, 1.0, 2
CHANNELS = {1.0: 4, 0.25: 1}
CLIENTS = {"A": (1.0, np.array([0, 2, 2]), 0.4, 0.3), "B": (0.25, np.array([1, 0, 2, 1]), 2.0, 4.0)}
"""Width, labels, start of the data and their size: A's gradients are shorter than the bound, B's longer."""


def start():
    """Return the server's weights."""
    return dense(4, 0.2)


def data(client):
    """Return images (samples, 1, 4, 4) and labels (samples,)."""
    _, y, begin, size = CLIENTS[client]
    return wave((len(y), 1, 4, 4), begin, size), y


def leading(width):
    """Return name → index of the slice that ``width`` has."""
    c = CHANNELS[width]
    convolutions = {"conv1.weight": np.s_[:c], "conv2.weight": np.s_[:c, :c], "conv2.bias": np.s_[:c]}
    return {**convolutions, "fc.weight": np.s_[:, : 4 * c], "fc.bias": np.s_[:]}


def loss_of(held, client):
    """Return the masked mean cross-entropy of a client's network."""
    width, (x, y) = CLIENTS[client][0], data(client)
    scaled = {name: tensor / width if name.startswith("conv") else tensor for name, tensor in held.items()}
    z = logits(scaled, x) * np.isin(np.arange(LABELS), y)
    return -log_softmax(z)[np.arange(len(y)), y].mean()


def local(state, client):
    """Return what ``client`` sends, and the norms of its gradients before clipping."""
    held = {name: state[name][index].copy() for name, index in leading(CLIENTS[client][0]).items()}
    moments, norms = {name: np.zeros(tensor.shape) for name, tensor in held.items()}, []
    for _ in range(STEPS):
        slopes = gradients(lambda p: loss_of(p, client), held)
        norms.append(np.sqrt(sum((slope**2).sum() for slope in slopes.values())))
        factor = min(1.0, BOUND / (norms[-1] + 1e-6))
        for name, slope in slopes.items():
            moments[name] = MOMENTUM * moments[name] + factor * slope + DECAY * held[name]
        held = {name: tensor - LR * moments[name] for name, tensor in held.items()}
    return held, norms


def round_of(state, clients):
    """Return the server's weights."""
    total = {name: np.zeros(tensor.shape) for name, tensor in state.items()}
    holders = {name: np.zeros(tensor.shape) for name, tensor in state.items()}
    for client in clients:
        (width, y, *_), (sent, _) = CLIENTS[client], local(state, client)
        for name, index in leading(width).items():
            rows = np.isin(np.arange(LABELS), y).astype(float) if name.startswith("fc") else np.ones(len(state[name][index]))
            weight = rows.reshape(-1, *[1] * (state[name].ndim - 1))
            total[name][index] += weight * sent[name]
            holders[name][index] += weight * np.ones(state[name][index].shape)
    return {n: np.where(holders[n] > 0, total[n] / np.maximum(holders[n], 1), state[n]) for n in state}
