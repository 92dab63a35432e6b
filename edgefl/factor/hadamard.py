"""FedPara: a weight as the Hadamard product of two low-rank ones (Hyeon-Woo et al., ICLR 2022).

A matrix is W = (X₁Y₁ᵀ) ⊙ (X₂Y₂ᵀ), of rank up to R² from 2R(n + m) numbers (Proposition 1); a convolution's weight is
W = (T₁ ×₁ X₁ ×₂ Y₁) ⊙ (T₂ ×₁ X₂ ×₂ Y₂), from 2R(n + m + R·k₁k₂) (Proposition 3), with n outputs, m inputs, X (n, R), Y (m, R) and
T (R, R, k₁, k₂). Kernels of one position are matrices: a T would add numbers and no rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edgefl.factor.gradient import gradients

Shape = tuple[int, ...]


def positions(shape: Shape) -> int:
    """Return k₁k₂ of a weight (n, m, k₁, k₂); 1 for a matrix (n, m)."""
    return math.prod(shape[2:])


def parameters_of_rank(shape: Shape, rank: int) -> int:
    """Return how many numbers the factors of a weight of ``shape`` hold: 2R(n + m), and 2R² for each position but a single one.

    >>> parameters_of_rank((256, 256), 16), parameters_of_rank((256, 256, 3, 3), 16)  # Table 1: 16 K, 21 K
    (16384, 20992)
    """
    n, m, q = shape[0], shape[1], positions(shape)
    return 2 * rank * (n + m + (rank * q if q > 1 else 0))


def rank_range(shape: Shape) -> tuple[int, int]:
    """Return r_min = min(⌈√n⌉, ⌈√m⌉), from which W can have full rank (Corollary 1), and r_max, up to which factors are no larger than W.

    >>> rank_range((100, 100)), rank_range((512, 512, 3, 3))
    ((10, 25), (23, 309))
    """
    n, m, q = shape[0], shape[1], positions(shape)
    least = min(math.isqrt(n - 1), math.isqrt(m - 1)) + 1 if min(n, m) > 1 else 1
    # 2R(n + m + Rq) ≤ nmq: the root of the quadratic, then to the exact integer.
    most = math.floor((math.sqrt((n + m) ** 2 + 2.0 * n * m * q * q) - (n + m)) / (2 * q)) if q > 1 else n * m // (2 * (n + m))
    while parameters_of_rank(shape, most) > n * m * q:
        most -= 1
    while parameters_of_rank(shape, most + 1) <= n * m * q:
        most += 1
    return least, most


def rank_of(shape: Shape, gamma: float) -> int:
    """Return R = round((1 − γ)·r_min + γ·r_max) (section 3.1), or 0 if r_max < r_min: such a layer is cheaper dense.

    >>> rank_of((512, 512, 3, 3), 0.1), rank_of((64, 3, 3, 3), 0.0), rank_of((4, 4), 0.5)
    (52, 2, 0)
    """
    least, most = rank_range(shape)
    return round((1 - gamma) * least + gamma * most) if most >= least else 0


def factor_shapes(shape: Shape, rank: int) -> dict[str, Shape]:
    """Return the shapes of one inner weight's factors: x (n, R), y (m, R) and, for a kernel of several positions, t (R, R, k₁, k₂)."""
    shapes: dict[str, Shape] = {"x": (shape[0], rank), "y": (shape[1], rank)}
    return {**shapes, "t": (rank, rank, *shape[2:])} if positions(shape) > 1 else shapes


def inner_weight(x: Tensor, y: Tensor, t: Tensor | None = None) -> Tensor:
    """Return X Yᵀ (n, m), or T ×₁ X ×₂ Y (n, m, k₁, k₂). Y comes first, so that the product with X has the weight's own layout."""
    kernel = () if t is None else tuple(t.shape[2:])
    return (x @ inner_half(y, t)).view(len(x), len(y), *kernel)


def inner_half(y: Tensor, t: Tensor | None = None) -> Tensor:
    """Return Yᵀ (R, m), or T ×₂ Y as a matrix (R, m·k₁k₂): what X is multiplied by."""
    if t is None:
        return y.T
    rank, q = y.shape[1], positions(tuple(t.shape))
    half = t.reshape(rank, rank, q).transpose(1, 2) @ y.T  # (R, q, R) · (R, m), one product over all R·q rows
    return half.transpose(1, 2).reshape(rank, -1)


class HadamardProduct(torch.autograd.Function):
    """(X₁H₁) ⊙ (X₂H₂), or (X₁H₁) ⊙ (X₂H₂ + 1) if ``plus_one``: from x (n, R) and h (R, k) of each, a matrix (n, k).

    Only the factors are saved for the backward pass, which multiplies them again: at most three tensors of the result's size exist at once.
    """

    generate_vmap_rule = True  # several clients' products at once

    @staticmethod
    def forward(x1: Tensor, h1: Tensor, x2: Tensor, h2: Tensor, plus_one: bool) -> Tensor:
        """Return the product."""
        weight, second = x1 @ h1, x2 @ h2
        return weight.mul_(second.add_(1) if plus_one else second)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the factors."""
        *factors, ctx.plus_one = inputs
        ctx.save_for_backward(*factors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives by the factors."""
        x1, h1, x2, h2 = ctx.saved_tensors

        def times(product: Tensor, plus_one: bool = False) -> Tensor:
            if torch.is_grad_enabled():  # the derivative will be differentiated again and needs its inputs
                return gradient * (product + 1 if plus_one else product)
            return (product.add_(1) if plus_one else product).mul_(gradient)

        # In this order of factors, and with the small one laid out anew, the same products take a tenth less time.
        first = times(x2 @ h2, ctx.plus_one)
        by_x1, by_h1 = (h1 @ first.T).T, x1.T.contiguous() @ first
        del first
        second = times(x1 @ h1)
        return by_x1, by_h1, (h2 @ second.T).T, x2.T.contiguous() @ second, None


def he_variance(shape: Shape) -> float:
    """Return 2/(max(n, m)·k₁k₂): He initialisation. By the fan-out alone a classifier would start too large, and diverge."""
    return 2 / (max(shape[:2]) * positions(shape))


def factor_stds(shape: Shape, ranks: tuple[int, int], variance: float) -> dict[str, float]:
    """Return the standard deviations of x (n, R₁), y (m, R₂) and t (R₁, R₂, k₁, k₂) for a product of ``variance``.

    X, Y and T's unfoldings get columns of equal norm, as U√Σ and √ΣVᵀ have: a step on the factors then moves the product least.

    >>> stds = factor_stds((10, 1000), (4, 4), 0.002)
    >>> round(4 * stds["x"] ** 2 * stds["y"] ** 2, 9), round(10 * stds["x"] ** 2 / (1000 * stds["y"] ** 2), 9)
    (0.002, 1.0)
    """
    (n, m), q, rank = shape[:2], positions(shape), math.sqrt(ranks[0] * ranks[1])
    norm_sq = (variance * n * m * q / rank) ** (1 / 3 if q > 1 else 1 / 2)
    return {"x": math.sqrt(norm_sq / n), "y": math.sqrt(norm_sq / m), "t": math.sqrt(norm_sq / (rank * q))}


def draw(shape: Shape, std: float) -> Tensor:
    """Return a factor with normal entries, scaled so that their root mean square is exactly ``std``: one number alone may be near 0."""
    entries = torch.nn.init.normal_(torch.empty(shape))
    return entries * (std / entries.square().mean().sqrt())


def inner_variances(shape: Shape, plus_one: bool = False) -> tuple[float, float]:
    """Return variances of the two inner weights whose product has :func:`he_variance`.

    W₁ ⊙ W₂ has v₁v₂: each takes the square root. W₁ ⊙ (W₂ + 1) has v₁(1 + v₂): W₂ keeps the square root.

    >>> v1, v2 = inner_variances((256, 64), plus_one=True)
    >>> round(v1 * (1 + v2) * 128, 9)
    1.0
    """
    target = he_variance(shape)
    second = math.sqrt(target)
    return (target / (1 + second) if plus_one else second), second


def jacobian_gap(
    compose: Callable[[Sequence[Tensor]], Tensor], factors: Sequence[Tensor], gradient: Tensor, step: float
) -> Tensor:
    """Return ‖W′ − (W − ηJ_W)‖₂: how far one ``step`` η on the factors misses the step on the weight itself (Eq. 6 to 9).

    ``compose`` maps factors to W, differentiably; ``gradient`` is J_W = ∂L/∂W, taken as a constant.
    """
    weight = compose(factors)
    slopes = gradients((weight * gradient).sum(), factors, constant=False)
    moved = compose([factor - step * slope for factor, slope in zip(factors, slopes, strict=True)])
    return torch.linalg.vector_norm(moved - weight + step * gradient)
