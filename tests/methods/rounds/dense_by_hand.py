"""Rounds in NumPy of the methods that train dense weights: FedPer, stand-alone, and Pufferfish around its switch."""

import numpy as np
from conv_net_by_hand import CLIENTS, RATE, draw, mean, samples, slopes

SHAPES = {
    "conv1.weight": (8, 1, 3, 3), "conv1.bias": (8,), "conv2.weight": (4, 8, 3, 3), "conv2.bias": (4,),
    "fc.weight": (3, 4), "fc.bias": (3,),
}  # fmt: skip


def start():
    """Return the first tensors."""
    return draw(3, SHAPES)


def step(w, client, count):
    """Return a client's tensors after one step on all of its samples."""
    d = slopes(w, *samples(client, count))
    return {name: w[name] - RATE * d[name] for name in w}


def partly_personal(personal, rounds=2):
    """Return the shared tensors and client → its own ones, after rounds that average all but what starts with ``personal``."""
    own = {name for name in SHAPES if name.startswith(personal)}
    shared = {name: value for name, value in start().items() if name not in own}
    kept = {client: {name: value for name, value in start().items() if name in own} for client, _ in CLIENTS}
    for _ in range(rounds):
        trained = [step(shared | kept[client], client, count) for client, count in CLIENTS]
        shared = mean(trained, shared)
        kept = {client: {name: t[name] for name in own} for (client, _), t in zip(CLIENTS, trained, strict=True)}
    return shared, kept


def pufferfish():
    """Return the server's tensors after one dense round, the switch at rank 2 of conv2, and one round of its factors.

    conv2's weight, unrolled to (m·k) × (n·k) = 24 × 12, is UΣVᵀ; the factors are U√Σ (24, 2) and √ΣVᵀ (2, 12) with the sign of U's
    columns such that the largest entry is positive. γ = 0.5 of n = 4 output channels is rank 2; the stem and the classifier stay dense.
    """
    w = mean([step(start(), *client) for client in CLIENTS], SHAPES)
    unrolled = w.pop("conv2.weight").transpose(1, 2, 0, 3).reshape(24, 12)
    u, s, vt = np.linalg.svd(unrolled, full_matrices=False)
    # 24 > 12: the shorter side is V's, whose columns are made positive at their largest entry.
    signs = np.sign(vt[np.arange(12), np.abs(vt).argmax(1)])
    left, right = (u * signs * np.sqrt(s))[:, :2], (np.sqrt(s)[:, None] * signs[:, None] * vt)[:2]

    def factor_step(client, count):
        dense = {**w, "conv2.weight": (left @ right).reshape(8, 3, 4, 3).transpose(2, 0, 1, 3)}
        d = slopes(dense, *samples(client, count))
        j = d.pop("conv2.weight").transpose(1, 2, 0, 3).reshape(24, 12)
        moved = {name: w[name] - RATE * d[name] for name in w}
        return moved | {"left": left - RATE * j @ right.T, "right": right - RATE * left.T @ j}

    after = mean([factor_step(*client) for client in CLIENTS], [*w, "left", "right"])
    after["conv2.u.weight"] = after.pop("left").T.reshape(2, 8, 3, 1)
    after["conv2.v.weight"] = after.pop("right").reshape(2, 4, 1, 3).transpose(1, 0, 2, 3)
    after["conv2.v.bias"] = after.pop("conv2.bias")
    return after
