"""FedHM's aggregations of one unrolled weight in NumPy: from products of factors, and entry by entry in the basis of the decomposition."""

import numpy as np


def unrolled(weight):
    """Return (n, m, k1, k2) as a matrix: a row per input channel and kernel row, a column per output channel and kernel column."""
    n, m, k1, k2 = weight.shape
    matrix = np.zeros((m * k1, n * k2))
    for o, i, y, x in np.ndindex(weight.shape):
        matrix[i * k1 + y, o * k2 + x] = weight[o, i, y, x]
    return matrix


def rolled(matrix, shape):
    """Undo ``unrolled``."""
    weight = np.zeros(shape)
    for o, i, y, x in np.ndindex(*shape):
        weight[o, i, y, x] = matrix[i * shape[2] + y, o * shape[3] + x]
    return weight


def truncation(matrix, rank):
    """Return the nearest matrix of the rank."""
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * values[:rank]) @ v[:rank]


def mean(trained):
    """Return the paper's average of (weight, rank, product that came back)."""
    return sum(weight * after for weight, _, after in trained) / sum(weight for weight, _, _ in trained)


def residual(matrix, trained):
    """Return W + Σ w(product − truncation of W) / Σ w."""
    changes = (weight * (after - truncation(matrix, rank)) for weight, rank, after in trained)
    return matrix + sum(changes) / sum(weight for weight, _, _ in trained)


def bands(matrix, trained):
    """Return W plus its changes, each entry of them in the basis of singular vectors averaged over the clients that hold its band.

    Entry (a, b) is in the first band with more than min(a, b) ranks. A client's entries in bands that it does not hold count in its last.
    """
    u, _, v = np.linalg.svd(matrix)
    ranks = sorted({rank for _, rank, _ in trained})
    holders = [sum(weight for weight, of, _ in trained if of >= rank) for rank in ranks]
    inside = [(weight, ranks.index(rank), u.T @ (after - truncation(matrix, rank)) @ v.T) for weight, rank, after in trained]
    change = np.zeros(matrix.shape)
    for a, b in np.ndindex(*matrix.shape):
        band = next((i for i, rank in enumerate(ranks) if min(a, b) < rank), len(ranks) - 1)
        for weight, last, delta in inside:
            change[a, b] += weight * delta[a, b] / holders[min(band, last)]
    return matrix + u @ change @ v
