"""A network of three layers in NumPy: two 3×3 convolutions and a classifier, with derivatives written out position by position.

For the scripts beside it. ``w`` has dense weights: conv1 (8, 1, 3, 3), conv2 (4, 8, 3, 3), fc (3, 4), each with a bias; inputs are
(samples, 1, 5, 5). There is a ReLU behind each convolution; the loss is the mean cross-entropy.
"""

import numpy as np

RATE = 0.1
CLIENTS = ((0, 3), (1, 5))  # (client, samples): unequal


def samples(client, count):
    """Return a client's images and labels."""
    rng = np.random.default_rng([11, client])
    return rng.normal(size=(count, 1, 5, 5)), rng.integers(3, size=count)


def draw(seed, shapes, scale=0.5):
    """Return tensors of mixed signs."""
    rng = np.random.default_rng(seed)
    return {name: scale * rng.normal(size=shape) for name, shape in shapes.items()}


def convolve(x, weight, bias):
    """Return the correlation of ``x`` (b, m, h, w) with ``weight``, no padding."""
    height, width = x.shape[2] - 2, x.shape[3] - 2
    out = np.zeros((len(x), len(weight), height, width))
    for i in range(height):
        for j in range(width):
            out[:, :, i, j] = np.einsum("bmkl,nmkl->bn", x[:, :, i : i + 3, j : j + 3], weight) + bias
    return out


def convolve_back(x, weight, slope):
    """Return the derivatives by weight, bias and input, given those by the output."""
    d_weight, d_x = np.zeros_like(weight), np.zeros_like(x)
    for i in range(slope.shape[2]):
        for j in range(slope.shape[3]):
            d_weight += np.einsum("bn,bmkl->nmkl", slope[:, :, i, j], x[:, :, i : i + 3, j : j + 3])
            d_x[:, :, i : i + 3, j : j + 3] += np.einsum("bn,nmkl->bmkl", slope[:, :, i, j], weight)
    return d_weight, slope.sum((0, 2, 3)), d_x


def slopes(w, x, y):
    """Return name → derivative of the mean cross-entropy by every dense weight and bias."""
    a1 = convolve(x, w["conv1.weight"], w["conv1.bias"])
    z1 = np.maximum(a1, 0)
    a2 = convolve(z1, w["conv2.weight"], w["conv2.bias"])
    z2 = np.maximum(a2, 0).reshape(len(x), -1)
    logits = z2 @ w["fc.weight"].T + w["fc.bias"]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    shares /= len(y)
    d = {"fc.weight": shares.T @ z2, "fc.bias": shares.sum(0)}
    back = (shares @ w["fc.weight"]).reshape(a2.shape) * (a2 > 0)
    d["conv2.weight"], d["conv2.bias"], back = convolve_back(z1, w["conv2.weight"], back)
    d["conv1.weight"], d["conv1.bias"], _ = convolve_back(x, w["conv1.weight"], back * (a1 > 0))
    return d


def mean(tensors, names):
    """Return Σ n·w / Σ n over the clients."""
    total = sum(count for _, count in CLIENTS)
    return {name: sum(count * t[name] for (_, count), t in zip(CLIENTS, tensors, strict=True)) / total for name in names}
