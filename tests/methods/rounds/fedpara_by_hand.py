"""One round of FedPara in NumPy, from Proposition 3, the chain rule of Eq. 6 and Algorithm 1.

Ranks at γ = 0.6: conv1 (8, 1, 3, 3) has r_min = 1 and r_max = 1 (2·1·(9 + 9) = 36 ≤ 72, and 2·2·(9 + 18) = 108 is more): R = 1.
conv2 (4, 8, 3, 3) has r_min = 2 and r_max = 3 (2·3·(12 + 27) = 234 ≤ 288, and 2·4·(12 + 36) = 384 is more): R = round(2.6) = 3.
"""

import numpy as np
from conv_net_by_hand import CLIENTS, RATE, draw, mean, samples, slopes

GAMMA = 0.6
DENSE = {"conv1.bias": (8,), "conv2.bias": (4,), "fc.weight": (3, 4), "fc.bias": (3,)}
LAYERS = {"conv1.weight": (8, 1, 1), "conv2.weight": (4, 8, 3)}  # n, m, R


def start():
    """Return the server's first tensors."""
    shapes = dict(DENSE)
    for name, (n, m, r) in LAYERS.items():
        for i in "12":
            shapes |= {f"{name}.x{i}": (n, r), f"{name}.y{i}": (m, r), f"{name}.t{i}": (r, r, 3, 3)}
    return draw(1, shapes)


def inner(w, name, i):
    """Return T ×₁ X ×₂ Y."""
    return np.einsum("abkl,na,mb->nmkl", w[f"{name}.t{i}"], w[f"{name}.x{i}"], w[f"{name}.y{i}"])


def compose(w, one=0.0):
    """Return the dense weights: W₁ ⊙ (W₂ + one)."""
    dense = {name: w[name] for name in DENSE}
    return dense | {name: inner(w, name, 1) * (inner(w, name, 2) + one) for name in LAYERS}


def factor_slopes(w, dense, one=0.0):
    """Return the derivatives by the factors: J_W1 = J_W ⊙ (W₂ + one), J_W2 = J_W ⊙ W₁, then by each factor."""
    d = {name: dense[name] for name in DENSE}
    for name in LAYERS:
        by_inner = {"1": dense[name] * (inner(w, name, 2) + one), "2": dense[name] * inner(w, name, 1)}
        for i, j in by_inner.items():
            x, y, t = (w[f"{name}.{kind}{i}"] for kind in "xyt")
            d[f"{name}.x{i}"] = np.einsum("nmkl,abkl,mb->na", j, t, y)
            d[f"{name}.y{i}"] = np.einsum("nmkl,abkl,na->mb", j, t, x)
            d[f"{name}.t{i}"] = np.einsum("nmkl,na,mb->abkl", j, x, y)
    return d


def step(w, client, count, one=0.0):
    """Return a client's tensors after one step on all of its samples."""
    x, y = samples(client, count)
    d = factor_slopes(w, slopes(compose(w, one), x, y), one)
    return {name: w[name] - RATE * d[name] for name in w}


def after():
    """Return the server's tensors after the round."""
    w = start()
    return mean([step(w, *client) for client in CLIENTS], w)
