"""NumPy only: a three-layer network, its loss, and gradients by central differences, for the hand-derived rounds of width methods.

Two 2×2 convolutions (1 → c → c channels, the second with a bias), ReLU after each, and a linear classifier of three labels; images 4×4.
"""

import numpy as np

LABELS = 3


def wave(shape, start, size=0.6):
    """Return fixed numbers of mixed sign."""
    count = int(np.prod(shape))
    return size * np.sin(1.7 * np.arange(count) + start).reshape(shape)


def data(samples, start):
    """Return images (samples, 1, 4, 4) and labels (samples,)."""
    return wave((samples, 1, 4, 4), start, 1.5), (np.arange(samples) * 2 + int(start)) % LABELS


def dense(channels, start):
    """Return the weights of a network with ``channels`` channels."""
    return {
        "conv1.weight": wave((channels, 1, 2, 2), start),
        "conv2.weight": wave((channels, channels, 2, 2), start + 0.5),
        "conv2.bias": wave((channels,), start + 1.1, 0.2),
        "fc.weight": wave((LABELS, 4 * channels), start + 1.9),
        "fc.bias": wave((LABELS,), start + 2.3, 0.3),
    }


def convolve(x, w):
    """Slide w (out, in, 2, 2) over x (n, in, h, w), one output position at a time."""
    n, _, height, width = x.shape
    out = np.zeros((n, w.shape[0], height - 1, width - 1))
    for i in range(height - 1):
        for j in range(width - 1):
            out[:, :, i, j] = np.einsum("ncab,ocab->no", x[:, :, i : i + 2, j : j + 2], w)
    return out


def logits(p, x):
    """Return (n, labels)."""
    x = np.maximum(convolve(x, p["conv1.weight"]), 0)
    x = np.maximum(convolve(x, p["conv2.weight"]) + p["conv2.bias"][None, :, None, None], 0)
    return x.reshape(len(x), -1) @ p["fc.weight"].T + p["fc.bias"]


def log_softmax(z):
    """Return log-probabilities by rows."""
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def cross_entropy(p, x, y):
    """Return the mean cross-entropy."""
    total = 0.0
    for row, label in zip(log_softmax(logits(p, x)), y, strict=True):
        total -= row[label]
    return total / len(y)


def gradients(loss, tensors):
    """Return d loss / d tensors entry by entry, by central differences."""
    step, result = 1e-6, {}
    for name, tensor in tensors.items():
        slope = np.zeros(tensor.shape)
        for index in np.ndindex(tensor.shape):
            ends = []
            for sign in (1, -1):
                moved = tensor.copy()
                moved[index] += sign * step
                ends.append(loss({**tensors, name: moved}))
            slope[index] = (ends[0] - ends[1]) / (2 * step)
        result[name] = slope
    return result


def descend(loss, tensors, lr):
    """Return the tensors after one step of plain gradient descent."""
    slopes = gradients(loss, tensors)
    return {name: tensor - lr * slopes[name] for name, tensor in tensors.items()}
