"""NumPy only: two rounds of Factorized-FL and of its β, from its equations, on the network of small_conv_by_hand.py.

Client A (3 samples) and client B (5 samples) take one step of gradient descent in each round. For the second round, every client receives
its own average by Eq. 4 and 5, each u_i with its own weight. There are two forms. "text": kernels are multiples of u, and the step is on
Eq. 6; μ begins with values of both signs, so that its penalty counts from the first step. "code": the authors' ``view`` fills a weight with
u vᵀ row after row, and the loss has no penalty, because theirs comes from detached tensors. Both drop small entries of μ from what counts.
"""

from functools import cache

import numpy as np
from small_conv_by_hand import LABELS, cross_entropy, data, descend, wave

LAYERS = {"conv1": (4, 1, 2, 2), "conv2": (4, 4, 2, 2), "fc": (LABELS, 16)}
BIASED = {"conv2": 4, "fc": LABELS}
SPARSITY, THRESHOLD, SCALE, LR = 0.1, 0.25, 20.0, 0.6
CLIENTS = {"A": (3, 0.4), "B": (5, 2.0)}  # samples, start of the data


def start():
    """Return u, v, μ and biases of every layer."""
    held = {}
    for number, (layer, shape) in enumerate(LAYERS.items()):
        a, b = (shape[1], shape[0]) if layer == "fc" else (4, shape[0] * shape[1])
        held[f"{layer}.u"] = wave((a,), 0.4 + number, 0.9)
        held[f"{layer}.v"] = wave((b,), 1.2 + 2 * number, 0.05 if layer == "conv2" else 0.7)
        held[f"{layer}.mu"] = wave(shape, 1.5 + number, 0.4)
        if layer in BIASED:
            held[f"{layer}.bias"] = wave((BIASED[layer],), 0.9 + number, 0.2)
    return held


def compose(u, v, mu, form="text"):
    """Return u vᵀ ⊕ μ, one entry at a time.

    In the text, v runs over output and input channels, and u over the kernel. In the code, the k-th value of a convolution has column
    k mod b and row k div b of u vᵀ (a, b). Both have v of the outputs and u of the inputs of a linear layer.
    """
    weight = np.zeros(mu.shape)
    for k, index in enumerate(np.ndindex(mu.shape)):
        if mu.ndim == 2:
            n, m = index
            weight[index] = v[n] * u[m] + mu[index]
        elif form == "code":
            weight[index] = u[k // len(v)] * v[k % len(v)] + mu[index]
        else:
            n, m, i, j = index
            weight[index] = v[n * mu.shape[1] + m] * u[2 * i + j] + mu[index]
    return weight


def plain(held, form="text"):
    """Return the dense network that ``held`` composes."""

    def weight(layer):
        u, v, mu = (held[f"{layer}.{part}"] for part in ("u", "v", "mu"))
        return compose(u, v, mu, form)

    weights = {f"{layer}.weight": weight(layer) for layer in LAYERS}
    return {**weights, **{f"{layer}.bias": held[f"{layer}.bias"] for layer in BIASED}}


def pruned(held):
    """Return ``held`` with the entries of every μ below λ at zero."""
    return {name: np.where(np.abs(t) < SPARSITY, 0.0, t) if name.endswith(".mu") else t for name, t in held.items()}


def objective(held, x, y, form):
    """Return Eq. 6; the code's penalty is a constant, whatever its value."""
    penalty = SPARSITY * sum(np.abs(held[f"{layer}.mu"]).sum() for layer in LAYERS)
    return cross_entropy(plain(held, form), x, y) + (penalty if form == "text" else 0.0)


def names(beta):
    """Return what comes down and what goes up; the classifier is fc, the second-last layer conv2."""
    if not beta:
        return ["conv1.u", "conv2.u"], ["conv1.u", "conv2.u", "conv2.v"]
    travels = [name for name in start() if not name.startswith("fc.")]
    return travels, travels


def trained(client, held, form="text"):
    """Return everything that a client holds after its step."""
    samples, begin = CLIENTS[client]
    x, y = data(samples, begin)
    return descend(lambda tensors: objective(tensors, x, y, form), held, LR)


def averages(sent, me, down):
    """Return client ``me``'s average: weights exp(εσ_i) over the clients with σ_i ≥ τ, its own σ = 1."""
    own = sent[me]["conv2.v"]
    weights = {}
    for other, tensors in sent.items():
        v = tensors["conv2.v"]
        sigma = 1.0 if other == me else (own @ v) / np.sqrt((own @ own) * (v @ v))
        if other == me or sigma >= THRESHOLD:
            weights[other] = np.exp(SCALE * sigma)
    total = sum(weights.values())
    return {name: sum(w / total * sent[other][name] for other, w in weights.items()) for name in down}


@cache
def rounds(beta, form="text"):
    """Return (what each client sent in round 1, what each receives in round 2, what each sent then, the mean of what was sent last)."""
    down, up = names(beta)
    kept, sent = {}, {}
    for client in CLIENTS:
        after = trained(client, start(), form)
        kept[client] = {name: t for name, t in after.items() if name not in down}
        sent[client] = {name: (pruned(after) if beta else after)[name] for name in up}
    received = {client: averages(sent, client, down) for client in CLIENTS}
    again = {}
    for client in CLIENTS:
        after = trained(client, {**received[client], **kept[client]}, form)
        again[client] = {name: (pruned(after) if beta else after)[name] for name in up}
    total = sum(samples for samples, _ in CLIENTS.values())
    mean = {name: sum(CLIENTS[c][0] * again[c][name] for c in CLIENTS) / total for name in up}
    return sent, received, again, mean
