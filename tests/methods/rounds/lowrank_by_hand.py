"""One round of Tucker-2 training in NumPy: the network computes with composed weights, where the product has small layers.

Ranks at half of the dense weights: conv1 (8, 1, 3, 3) has 72: R = 2 gives (2, 1) and 8·2 + 1 + 2·9 = 35 ≤ 36. conv2 (4, 8, 3, 3) has
288: R = 3 gives 4·3 + 8·3 + 9·9 = 117 ≤ 144, and R = 4 would give 192.
"""

import numpy as np
from conv_net_by_hand import CLIENTS, RATE, draw, mean, samples, slopes

SHARE = 0.5
LAYERS = {"conv1": (8, 1, 2, 1), "conv2": (4, 8, 3, 3)}  # n, m, R₁, R₂


def start():
    """Return the server's first tensors."""
    shapes = {"fc.weight": (3, 4), "fc.bias": (3,)}
    for name, (n, m, r1, r2) in LAYERS.items():
        shapes |= {f"{name}.reduce.weight": (r2, m, 1, 1), f"{name}.core.weight": (r1, r2, 3, 3)}
        shapes |= {f"{name}.expand.weight": (n, r1, 1, 1), f"{name}.expand.bias": (n,)}
    return draw(2, shapes)


def factors(w, name):
    """Return X (n, R₁), Y (m, R₂) and T."""
    return w[f"{name}.expand.weight"][:, :, 0, 0], w[f"{name}.reduce.weight"][:, :, 0, 0].T, w[f"{name}.core.weight"]


def step(w, client, count):
    """Return a client's tensors after one step on all of its samples."""
    dense = {name: w[name] for name in ("fc.weight", "fc.bias")}
    for name in LAYERS:
        x, y, t = factors(w, name)
        dense |= {f"{name}.weight": np.einsum("abkl,na,mb->nmkl", t, x, y), f"{name}.bias": w[f"{name}.expand.bias"]}
    by_dense = slopes(dense, *samples(client, count))
    d = {name: by_dense[name] for name in ("fc.weight", "fc.bias")}
    for name in LAYERS:
        (x, y, t), j = factors(w, name), by_dense[f"{name}.weight"]
        d[f"{name}.expand.weight"] = np.einsum("nmkl,abkl,mb->na", j, t, y)[:, :, None, None]
        d[f"{name}.reduce.weight"] = np.einsum("nmkl,abkl,na->bm", j, t, x)[:, :, None, None]
        d[f"{name}.core.weight"] = np.einsum("nmkl,na,mb->abkl", j, x, y)
        d[f"{name}.expand.bias"] = by_dense[f"{name}.bias"]
    return {name: w[name] - RATE * d[name] for name in w}


def after():
    """Return the server's tensors after the round."""
    w = start()
    return mean([step(w, *client) for client in CLIENTS], w)
