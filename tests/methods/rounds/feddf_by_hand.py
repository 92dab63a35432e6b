"""NumPy only: one round of FedDF with two unlike networks, in float64.

Tier 1 is tanh(x·W₁ᵀ + b₁)·W₂ᵀ + b₂ with five hidden values, tier 0.25 is x·Wᵀ + b. Both map four values to three labels. Clients A and B
have tier 1, client C has tier 0.25. Their updates are given. The server averages A and B by samples, takes C as it is, and then steps each
tier down the divergence from the mean of the three clients' logits, by Adam with a rate that falls along a cosine.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Network = dict[str, np.ndarray]
SAMPLES = {"A": 3, "B": 9, "C": 5}
PUBLIC, BATCH, STEPS, RATE = 5, 2, 4, 0.05
SHAPES = {
    "1": {"0.weight": (5, 4), "0.bias": (5,), "2.weight": (3, 5), "2.bias": (3,)},
    "0.25": {"weight": (3, 4), "bias": (3,)},
}


def values(shape: tuple[int, ...], start: float) -> np.ndarray:
    """Return values of both signs, none like another."""
    found: np.ndarray = 0.9 * np.sin(start + 1.7 * np.arange(np.prod(shape))).reshape(shape)
    return found


def network(label: str, start: float) -> Network:
    """Return name → tensor of a tier's network."""
    return {name: values(shape, start + 0.4 * number) for number, (name, shape) in enumerate(SHAPES[label].items())}


CLIENTS = {"A": ("1", network("1", 0.3)), "B": ("1", network("1", 2.1)), "C": ("0.25", network("0.25", 4.4))}
"""Client → its tier, and the tensors that it sends."""


def public() -> np.ndarray:
    """Return the public samples (5, 4)."""
    return 2.0 * values((PUBLIC, 4), 0.7)


def logits(p: Network, x: np.ndarray) -> np.ndarray:
    """Return the logits (n, 3) of a network of either tier."""
    if "weight" in p:
        found: np.ndarray = x @ p["weight"].T + p["bias"]
    else:
        found = np.tanh(x @ p["0.weight"].T + p["0.bias"]) @ p["2.weight"].T + p["2.bias"]
    return found


def softmax(z: np.ndarray) -> np.ndarray:
    """Return the probabilities of each row."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    found: np.ndarray = e / e.sum(axis=1, keepdims=True)
    return found


def gradient(p: Network, x: np.ndarray, wanted: np.ndarray) -> Network:
    """Return the gradient of the mean over x of KL(wanted ‖ softmax(logits))."""
    dz = (softmax(logits(p, x)) - wanted) / len(x)
    if "weight" in p:
        return {"weight": dz.T @ x, "bias": dz.sum(0)}
    hidden = np.tanh(x @ p["0.weight"].T + p["0.bias"])
    dh = dz @ p["2.weight"] * (1 - hidden**2)
    return {"0.weight": dh.T @ x, "0.bias": dh.sum(0), "2.weight": dz.T @ hidden, "2.bias": dz.sum(0)}


def adam(p: Network, batches: np.ndarray, x: np.ndarray, wanted: np.ndarray) -> Network:
    """Return a network after a step for each batch."""
    p = dict(p)
    m, v = ({name: np.zeros_like(tensor) for name, tensor in p.items()} for _ in range(2))
    for t, batch in enumerate(batches):
        rate = RATE * (1 + np.cos(np.pi * t / len(batches))) / 2
        for name, g in gradient(p, x[batch], wanted[batch]).items():
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g**2
            p[name] = p[name] - rate * (m[name] / (1 - 0.9 ** (t + 1))) / (np.sqrt(v[name] / (1 - 0.999 ** (t + 1))) + 1e-8)
    return p


def averages(clients: Iterable[str]) -> dict[str, Network]:
    """Return tier → the mean of its clients' tensors by samples."""
    means = {}
    for label in SHAPES:
        own = [name for name in clients if CLIENTS[name][0] == label]
        if own:
            total = sum(SAMPLES[name] for name in own)
            means[label] = {
                key: np.sum([SAMPLES[name] * CLIENTS[name][1][key] for name in own], axis=0) / total for key in SHAPES[label]
            }
    return means


def round_of(before: Mapping[str, Network], clients: Sequence[str], seed: int) -> dict[str, Network]:
    """Return tier → name → tensor after the round; ``before`` is what tiers without clients have."""
    rng, x = np.random.default_rng(seed), public()
    order = np.concatenate([rng.permutation(PUBLIC) for _ in range(2)])[: STEPS * BATCH]  # two permutations of five give eight
    wanted = softmax(np.mean([logits(CLIENTS[name][1], x) for name in clients], axis=0))
    after = {**before, **averages(clients)}
    for label in after:
        if [label] != [CLIENTS[name][0] for name in clients]:  # a tier that is the only teacher has nothing to learn
            after[label] = adam(after[label], order.reshape(STEPS, BATCH), x, wanted)
    return after
