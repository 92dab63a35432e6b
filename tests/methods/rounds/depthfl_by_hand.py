"""NumPy only: one round of DepthFL, on the network of small_conv_by_hand.py with an exit after its first convolution.

The exit is a linear layer on the means of the four quarters of the 3×3 positions after the ReLU; quarters share the middle. Client A has
both blocks and both exits, client B the first block and its exit. Every tensor is averaged over the clients that have it, by samples.
"""

import numpy as np
from small_conv_by_hand import LABELS, convolve, data, dense, descend, log_softmax, logits, wave

LR = 0.3
CHANNELS = 4
CLIENTS = {"A": (True, 3, 0.4), "B": (False, 5, 2.0)}  # whether it has both blocks, samples, start of the data


def start():
    """Return the server's weights."""
    own = {f"body.{name}": tensor for name, tensor in dense(CHANNELS, 0.2).items()}
    return {**own, "exits.1.weight": wave((LABELS, 4 * CHANNELS), 0.9, 0.8), "exits.1.bias": wave((LABELS,), -0.7, 0.3)}


def first_exit(p, x):
    """Return the logits (n, labels) after the first convolution."""
    maps = np.maximum(convolve(x, p["body.conv1.weight"]), 0)
    quarters = [maps[:, :, i : i + 2, j : j + 2].mean((2, 3)) for i in (0, 1) for j in (0, 1)]
    return np.stack(quarters, 2).reshape(len(x), -1) @ p["exits.1.weight"].T + p["exits.1.bias"]


def last_exit(p, x):
    """Return the logits (n, labels) of the whole network."""
    return logits({name.removeprefix("body."): tensor for name, tensor in p.items()}, x)


def divergence(teacher, student):
    """Return the mean over samples of KL(teacher ‖ student), both log-probabilities (n, labels)."""
    total = 0.0
    for t, s in zip(teacher, student, strict=True):
        total += np.sum(np.exp(t) * (t - s))
    return total / len(teacher)


def loss_of(held, x, y, both, weight):
    """Return Σ cross-entropy + λ/(m − 1) Σ KL(others, held fixed ‖ own) as a function of the weights."""
    exits = (first_exit, last_exit) if both else (first_exit,)
    teachers = [log_softmax(one(held, x)) for one in exits]

    def loss(p):
        own = [log_softmax(one(p, x)) for one in exits]
        total = sum(-np.mean([row[label] for row, label in zip(log, y, strict=True)]) for log in own)
        for i, log in enumerate(own):
            for j, teacher in enumerate(teachers):
                if i != j:
                    total += weight / (len(exits) - 1) * divergence(teacher, log)
        return total

    return loss


def has(both, name):
    """Return whether a client has a tensor."""
    return both or name == "body.conv1.weight" or name.startswith("exits.")


def local(state, client, weight, steps=2):
    """Return what ``client`` sends."""
    both, samples, begin = CLIENTS[client]
    x, y = data(samples, begin)
    held = {name: tensor for name, tensor in state.items() if has(both, name)}
    for _ in range(steps):
        held = descend(loss_of(held, x, y, both, weight), held, LR)
    return held


def average(state, sent):
    """Return the mean by samples over the clients that have a tensor; the others stay."""
    after = {}
    for name, before in state.items():
        holders = [(CLIENTS[client][1], tensors[name]) for client, tensors in sent.items() if name in tensors]
        after[name] = sum(n * t for n, t in holders) / sum(n for n, _ in holders) if holders else before
    return after
