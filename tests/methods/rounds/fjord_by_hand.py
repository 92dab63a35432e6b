"""NumPy only: one round of FjORD, on the network of small_conv_by_hand.py (four channels at width 1, two at 0.5).

Client A (width 1, 3 samples) takes two steps, of the widths that it draws; client B (width 0.5, 5 samples) two of its own width. A step
of a narrow width is gradient descent on the leading slices; then every entry is averaged over those who hold it, by samples.
"""

import numpy as np
from small_conv_by_hand import cross_entropy, data, dense, descend, log_softmax, logits

LR = 0.3
CHANNELS = {1.0: 4, 0.5: 2}
CLIENTS = {"A": (1.0, 3, 0.4), "B": (0.5, 5, 2.0)}  # width, samples, start of the data


def start():
    """Return the server's weights."""
    return dense(4, 0.2)


def leading(name, tensor, width):
    """Return the index of the slice that a network of ``width`` has of a tensor."""
    c = CHANNELS[width]
    return {
        "conv1.weight": np.s_[:c],
        "conv2.weight": np.s_[:c, :c],
        "conv2.bias": np.s_[:c],
        "fc.weight": np.s_[:, : 4 * c],
        "fc.bias": np.s_[:],
    }[name]


def part(tensors, width):
    """Return the network of ``width`` inside ``tensors``."""
    return {name: tensor[leading(name, tensor, width)] for name, tensor in tensors.items()}


def distilled(held, x, y, width, own):
    """Return cross-entropy of the own width + KL(own, held fixed ‖ drawn), as a function whose teacher is that of ``held`` now."""
    teacher = log_softmax(logits(part(held, own), x))

    def loss(tensors):
        value = cross_entropy(part(tensors, own), x, y)
        if width != own:
            student = log_softmax(logits(part(tensors, width), x))
            for t, s in zip(teacher, student, strict=True):
                value += np.sum(np.exp(t) * (t - s)) / len(y)
        return value

    return loss


def local(state, client, widths, distill=False):
    """Return what ``client`` sends after steps of ``widths``."""
    own, samples, begin = CLIENTS[client]
    x, y = data(samples, begin)
    held = part(state, own)
    for width in widths:
        if distill:
            held = descend(distilled(held, x, y, width, own), held, LR)
            continue
        held = {name: tensor.copy() for name, tensor in held.items()}
        stepped = descend(lambda p: cross_entropy(p, x, y), part(held, width), LR)
        for name, tensor in stepped.items():
            held[name][leading(name, held[name], width)] = tensor
    return held


def average(state, sent):
    """Return Σ n·w / Σ n over the clients that hold an entry; others keep their value."""
    after = {}
    for name, before in state.items():
        total, weight = np.zeros(before.shape), np.zeros(before.shape)
        for client, tensors in sent.items():
            own, samples, _ = CLIENTS[client]
            total[leading(name, before, own)] += samples * tensors[name]
            weight[leading(name, before, own)] += samples
        after[name] = np.where(weight > 0, total / np.maximum(weight, 1), before)
    return after
