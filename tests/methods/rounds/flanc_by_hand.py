"""NumPy only: one round of FLANC from its equations, on the network of small_conv_by_hand.py.

Client A (tier 1, 3 samples) and client B (tier 0.5, 5 samples) take one step of gradient descent each on Eq. 3, and the server
averages by Eq. 4. R₁ and R₂: conv1 1 and 2, conv2 2 and 3, fc 4 and 3. Either all three layers have a shared basis, with Eq. 3 as
printed, or conv2 alone, with λ times the mean of the squares, as in the authors' code; conv1 and fc are then dense, one per tier.
"""

import numpy as np
from small_conv_by_hand import LABELS, cross_entropy, data, descend, wave

SIZES = {"all": {"conv1": (1, 2), "conv2": (2, 3), "fc": (4, 3)}, "hidden": {"conv2": (2, 3)}}
LAMBDA = {"all": 0.1, "hidden": 1.3}
LR = 0.2
CHANNELS = {"1": 4, "0.5": 2}
CLIENTS = {"A": ("1", 3, 0.4), "B": ("0.5", 5, 2.0)}  # tier, samples, start of the data


def start(composed):
    """Return the server's tensors: V by layer, and U, dense weights, biases by layer and tier; V_shareᵀ has a basis vector a row."""
    state, sizes = {}, SIZES[composed]
    for number, (layer, (r1, r2)) in enumerate(sizes.items()):
        kernel = () if layer == "fc" else (2, 2)
        state[f"{layer}.basis"] = wave((r2, r1, *kernel), 0.3 + number, 0.8)
    for number, (tier, c) in enumerate(CHANNELS.items()):
        inputs = {"conv1": 1, "conv2": c, "fc": 4 * c}
        outputs = {"conv1": c, "conv2": c, "fc": LABELS}
        for place, layer in enumerate(inputs):
            begin = 1.3 * place + 0.7 * number
            if layer in sizes:
                r1, r2 = sizes[layer]
                state[f"{layer}.coefficients@{tier}"] = wave((outputs[layer], inputs[layer] // r1, r2), begin)
            else:
                kernel = () if layer == "fc" else (2, 2)
                state[f"{layer}.weight@{tier}"] = wave((outputs[layer], inputs[layer], *kernel), begin)
        state[f"conv2.bias@{tier}"] = wave((c,), 0.9 + number, 0.2)
        state[f"fc.bias@{tier}"] = wave((LABELS,), 1.4 + number, 0.3)
    return state


def compose(basis, coefficients):
    """W[t, s] = Σ_j u_j V_j over the fragment ⌊s/R₁⌋ of input channel s (Eq. 2), one entry at a time."""
    r2, r1 = basis.shape[:2]
    outputs, fragments, _ = coefficients.shape
    weight = np.zeros((outputs, fragments * r1, *basis.shape[2:]))
    for t in range(outputs):
        for s in range(fragments * r1):
            for j in range(r2):
                weight[t, s] += coefficients[t, s // r1, j] * basis[j, s % r1]
    return weight


def plain(held):
    """Return the dense network that a client's tensors compose."""
    layers = [name.removesuffix(".basis") for name in held if name.endswith(".basis")]
    weights = {f"{layer}.weight": compose(held[f"{layer}.basis"], held[f"{layer}.coefficients"]) for layer in layers}
    return weights | {name: tensor for name, tensor in held.items() if name.endswith((".weight", ".bias"))}


def penalty(held, composed):
    """Return Σ_l ‖V_l V_lᵀ − I‖², entry by entry of each Gram matrix; for ``hidden``, the mean over the entries."""
    total = 0.0
    for layer, (_, r2) in SIZES[composed].items():
        entries = 1 if composed == "all" else r2 * r2
        for i in range(r2):
            for j in range(r2):
                gram = np.sum(held[f"{layer}.basis"][i] * held[f"{layer}.basis"][j])
                total += (gram - (i == j)) ** 2 / entries
    return total


def objective(held, x, y, composed):
    """Return Eq. 3."""
    return cross_entropy(plain(held), x, y) + LAMBDA[composed] * penalty(held, composed)


def download(state, tier):
    """Return what a client of ``tier`` gets, under its own names."""
    bases = {name: t for name, t in state.items() if "@" not in name}
    own = {name.split("@")[0]: t for name, t in state.items() if name.endswith(f"@{tier}")}
    return {**bases, **own}


def round_of(state, clients, composed):
    """Return the server's tensors after a round of ``clients``."""
    trained = {}
    for name in clients:
        tier, samples, begin = CLIENTS[name]
        x, y = data(samples, begin)
        trained[name] = descend(lambda held, x=x, y=y: objective(held, x, y, composed), download(state, tier), LR)
    after = dict(state)
    for name in state:
        local, _, tier = name.partition("@")
        who = [c for c in clients if not tier or CLIENTS[c][0] == tier]
        if who:
            after[name] = sum(CLIENTS[c][1] * trained[c][local] for c in who) / sum(CLIENTS[c][1] for c in who)
    return after
