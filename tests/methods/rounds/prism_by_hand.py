"""NumPy only: one round of PriSM (section 3.2), on the network of small_conv_by_hand.py (four channels at width 1).

Layer conv2 has four principal kernels; the stem and the classifier are dense. Client A (c = 0.5, 3 samples) has two channels and kernels 0
and 2, client B (c = 0.25, 5 samples) one channel and kernel 0: kernels 1 and 3 are nobody's. Both take one step on cross-entropy and Eq. 6.

With ``outputs`` (a number of channels), both clients have the first ``outputs`` entries of u, all of v, and all other tensors whole. The
other output channels of conv2 contain the bias.

With momenta, clients take two steps with momentum from the server's, of the same kernels and channels, and send theirs. The server
averages each entry over the clients that have it.
"""

import numpy as np
from small_conv_by_hand import cross_entropy, data, dense, descend, gradients, wave

LR = 0.3
DECAY = 0.2
CHANNELS = {0.5: 2, 0.25: 1}
CLIENTS = {"A": (0.5, 3, 0.4), "B": (0.25, 5, 2.0)}  # keep ratio, samples, start of the data
DRAWS = {"A": (0, 2), "B": (0,)}


def start():
    """Return the server's weights; conv2's are no plain wave, whose unrolled matrix would have rank 2."""
    return {**dense(4, 0.2), "conv2.weight": 0.6 * np.sin(0.7 * np.arange(64.0) ** 2 + 0.3).reshape(4, 4, 2, 2)}


def kernels(state):
    """Return u (kernel → 4 outputs) and v (kernel → 4 × 2 × 2 inputs) of conv2, the root of each singular value in both."""
    left, sigma, right = np.linalg.svd(state["conv2.weight"].reshape(4, 16), full_matrices=False)
    u = {i: np.sqrt(sigma[i]) * left[:, i] for i in range(4)}
    v = {i: (np.sqrt(sigma[i]) * right[i]).reshape(4, 2, 2) for i in range(4)}
    return u, v


def product(held):
    """Return the sum of the kernels in ``held``, as the weight of a convolution with as many outputs as the bias; rows without u are 0."""
    drawn = sorted({name[1:] for name in held if name[0] == "u"})
    total = np.sum([np.einsum("n,mab->nmab", held[f"u{i}"], held[f"v{i}"]) for i in drawn], axis=0)
    return np.concatenate([total, np.zeros((len(held["conv2.bias"]) - len(total), *total.shape[1:]))])


def loss(held, x, y):
    """Return what a client minimises."""
    plain = {name: tensor for name, tensor in held.items() if name[0] not in "uv"}
    weight = product(held)
    return cross_entropy({**plain, "conv2.weight": weight}, x, y) + DECAY / 2 * np.sum(weight**2)


def part(state, c, drawn, outputs=None):
    """Return the kernels ``drawn`` and the other tensors at the first ``c`` channels, or with ``outputs`` at all."""
    c, rows = (4, outputs) if outputs else (c, c)
    u, v = kernels(state)
    held = {f"u{i}": u[i][:rows] for i in drawn} | {f"v{i}": v[i][:c] for i in drawn}
    held["conv1.weight"] = state["conv1.weight"][:c]
    held["conv2.bias"] = state["conv2.bias"][:c]
    held["fc.weight"] = state["fc.weight"][:, : 4 * c]
    held["fc.bias"] = state["fc.bias"]
    return held


def download(state, client, outputs=None):
    """Return what ``client`` receives: its kernels at the first channels, and leading slices."""
    return part(state, CHANNELS[CLIENTS[client][0]], DRAWS[client], outputs)


def local(state, client, outputs=None):
    """Return what ``client`` sends."""
    _, samples, begin = CLIENTS[client]
    x, y = data(samples, begin)
    return descend(lambda held: loss(held, x, y), download(state, client, outputs), LR)


def mean_over(before, parts):
    """Return ``before`` with each entry that some of ``parts`` (leading slices of it) have replaced by their plain mean."""
    after = before.copy()
    for index in np.ndindex(before.shape):
        values = [part[index] for part in parts if all(i < size for i, size in zip(index, part.shape, strict=True))]
        if values:
            after[index] = sum(values) / len(values)
    return after


def round_of(state, clients, outputs=None):
    """Return the server's weights after a round of ``clients`` (Eq. 5)."""
    sent = {client: local(state, client, outputs) for client in clients}
    u, v = kernels(state)
    weight = np.zeros((4, 4, 2, 2))
    for i in range(4):
        of = [client for client in clients if i in DRAWS[client]]
        whole_u = mean_over(u[i], [sent[client][f"u{i}"] for client in of])
        whole_v = mean_over(v[i], [sent[client][f"v{i}"] for client in of])
        weight += np.einsum("n,mab->nmab", whole_u, whole_v)
    rest = ("conv1.weight", "conv2.bias", "fc.weight", "fc.bias")
    return {"conv2.weight": weight} | {n: mean_over(state[n], [tensors[n] for tensors in sent.values()]) for n in rest}


def deployed(state, keep, outputs=None):
    """Return the plain network of a keep ratio, c of four: its first c kernels at its first channels."""
    held = part(state, CHANNELS[keep], range(CHANNELS[keep]), outputs)
    return {name: tensor for name, tensor in held.items() if name[0] not in "uv"} | {"conv2.weight": product(held)}


REST = ("conv1.weight", "conv2.bias", "fc.weight", "fc.bias")
MOMENTUM = 0.9


def first_momenta():
    """Return the server's momentum of every kernel and dense tensor, of mixed sign."""
    kinds = {f"u{i}": (4,) for i in range(4)} | {f"v{i}": (4, 2, 2) for i in range(4)} | {n: start()[n].shape for n in REST}
    return {name: wave(shape, 0.7 * number, 0.2) for number, (name, shape) in enumerate(kinds.items())}


def at_channels(name, tensor, c):
    """Return the part of a kernel's vector, or of a dense tensor, at the first ``c`` channels."""
    return tensor if name == "fc.bias" else tensor[:, : 4 * c] if name == "fc.weight" else tensor[:c]


def round_with_momentum(state, momenta, clients, signs, steps=2):
    """Return the server's weights and momenta after a round; ``signs``: kernel → ±1, which vector of the two of a decomposition."""
    u, v = ({i: signs[i] * vector for i, vector in side.items()} for side in kernels(state))
    sent = {}
    for client in clients:
        keep, samples, begin = CLIENTS[client]
        c, (x, y) = CHANNELS[keep], data(samples, begin)
        held = {f"u{i}": u[i][:c] for i in DRAWS[client]} | {f"v{i}": v[i][:c] for i in DRAWS[client]}
        held |= {name: at_channels(name, state[name], c) for name in REST}
        moving = {name: at_channels(name, momenta[name], c) for name in held}
        for _ in range(steps):
            slopes = gradients(lambda held, x=x, y=y: loss(held, x, y), held)
            moving = {name: MOMENTUM * moving[name] + slopes[name] for name in held}
            held = {name: tensor - LR * moving[name] for name, tensor in held.items()}
        sent[client] = held, moving
    whole = {f"u{i}": u[i] for i in range(4)} | {f"v{i}": v[i] for i in range(4)} | {name: state[name] for name in REST}

    def means(before, which):
        return {n: mean_over(tensor, [of[which][n] for of in sent.values() if n in of[which]]) for n, tensor in before.items()}

    weights, after = means(whole, 0), means(momenta, 1)
    total = np.sum([np.einsum("n,mab->nmab", weights[f"u{i}"], weights[f"v{i}"]) for i in range(4)], axis=0)
    return {"conv2.weight": total} | {name: weights[name] for name in REST}, after
