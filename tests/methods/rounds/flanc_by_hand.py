"""NumPy only: one round of FLANC from its equations, on the network of small_conv_by_hand.py.

Client A (tier 1, 3 samples) and client B (tier 0.5, 5 samples) take one step of gradient descent each on Eq. 3, and the server
averages by Eq. 4. R₁ and R₂: conv1 1 and 2, conv2 2 and 3, fc 4 and 3.
"""

import numpy as np
from small_conv_by_hand import LABELS, cross_entropy, data, descend, wave

SIZES = {"conv1": (1, 2), "conv2": (2, 3), "fc": (4, 3)}
LAMBDA, LR = 0.1, 0.2
CHANNELS = {"1": 4, "0.5": 2}
CLIENTS = {"A": ("1", 3, 0.4), "B": ("0.5", 5, 2.0)}  # tier, samples, start of the data


def start():
    """Return the server's tensors: V by layer, and U, biases by layer and tier; V_shareᵀ has a basis vector a row."""
    state = {}
    for number, (layer, (r1, r2)) in enumerate(SIZES.items()):
        kernel = () if layer == "fc" else (2, 2)
        state[f"{layer}.basis"] = wave((r2, r1, *kernel), 0.3 + number, 0.8)
    for number, (tier, c) in enumerate(CHANNELS.items()):
        inputs = {"conv1": 1, "conv2": c, "fc": 4 * c}
        outputs = {"conv1": c, "conv2": c, "fc": LABELS}
        for place, (layer, (r1, r2)) in enumerate(SIZES.items()):
            shape = (outputs[layer], inputs[layer] // r1, r2)
            state[f"{layer}.coefficients@{tier}"] = wave(shape, 1.3 * place + 0.7 * number)
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
    weights = {f"{layer}.weight": compose(held[f"{layer}.basis"], held[f"{layer}.coefficients"]) for layer in SIZES}
    return {**weights, "conv2.bias": held["conv2.bias"], "fc.bias": held["fc.bias"]}


def penalty(held):
    """Return Σ_l ‖V_l V_lᵀ − I‖², entry by entry of each Gram matrix."""
    total = 0.0
    for layer, (_, r2) in SIZES.items():
        for i in range(r2):
            for j in range(r2):
                gram = np.sum(held[f"{layer}.basis"][i] * held[f"{layer}.basis"][j])
                total += (gram - (i == j)) ** 2
    return total


def objective(held, x, y):
    """Return Eq. 3."""
    return cross_entropy(plain(held), x, y) + LAMBDA * penalty(held)


def download(state, tier):
    """Return what a client of ``tier`` gets, under its own names."""
    bases = {name: t for name, t in state.items() if "@" not in name}
    own = {name.split("@")[0]: t for name, t in state.items() if name.endswith(f"@{tier}")}
    return {**bases, **own}


def round_of(state, clients):
    """Return the server's tensors after a round of ``clients``."""
    trained = {}
    for name in clients:
        tier, samples, begin = CLIENTS[name]
        x, y = data(samples, begin)
        trained[name] = descend(lambda held, x=x, y=y: objective(held, x, y), download(state, tier), LR)
    after = dict(state)
    for name in state:
        local, _, tier = name.partition("@")
        who = [c for c in clients if not tier or CLIENTS[c][0] == tier]
        if who:
            after[name] = sum(CLIENTS[c][1] * trained[c][local] for c in who) / sum(CLIENTS[c][1] for c in who)
    return after
