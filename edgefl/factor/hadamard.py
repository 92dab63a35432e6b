"""FedPara: a weight as the Hadamard product W₁ ⊙ W₂ of two low-rank "inner" weights (Hyeon-Woo et al., ICLR 2022).

A matrix (n, m) is W = (X₁Y₁ᵀ) ⊙ (X₂Y₂ᵀ), of rank up to R² from 2R(n + m) values (Proposition 1). The weight (n, m, k₁, k₂) of a convolution
is W = (T₁ ×₁ X₁ ×₂ Y₁) ⊙ (T₂ ×₁ X₂ ×₂ Y₂), from 2R(n + m + R·k₁k₂) values (Proposition 3). There are n outputs and m inputs; X is (n, R),
Y is (m, R) and T is (R, R, k₁, k₂). ×₁ X multiplies the first dimension of T by X, and ×₂ Y the second by Y: T ×₁ X ×₂ Y is (n, m, k₁, k₂).
A 1×1 kernel is a matrix, because T would add values and no rank.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from edgefl.factor.gradient import gradients

Shape = tuple[int, ...]
Init = Literal["he", "authors"]
"""How large the first factors of FedPara are: see :func:`inner_stds`."""


def positions(shape: Shape) -> int:
    """Return k₁k₂ of a weight (n, m, k₁, k₂); 1 for a matrix (n, m)."""
    return math.prod(shape[2:])


def parameters_of_rank(shape: Shape, rank: int) -> int:
    """Return the number of values in the factors of a weight of ``shape``: 2R(n + m), plus 2R²k₁k₂ unless k₁k₂ is 1.

    >>> parameters_of_rank((256, 256), 16), parameters_of_rank((256, 256, 3, 3), 16)  # Table 1: 16 K, 21 K
    (16384, 20992)
    """
    n, m, q = shape[0], shape[1], positions(shape)
    return 2 * rank * (n + m + (rank * q if q > 1 else 0))


def rank_range(shape: Shape) -> tuple[int, int]:
    """Return r_min and r_max of a weight W.

    r_min = min(⌈√n⌉, ⌈√m⌉) is the least R at which W can have full rank (Corollary 1). r_max is the largest R at which the factors have no
    more values than W.

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
    """Return R = round((1 − γ)·r_min + γ·r_max) (section 3.1), or 0 if r_max < r_min: such a layer is smaller dense.

    >>> rank_of((512, 512, 3, 3), 0.1), rank_of((64, 3, 3, 3), 0.0), rank_of((4, 4), 0.5)
    (52, 2, 0)
    """
    least, most = rank_range(shape)
    return round((1 - gamma) * least + gamma * most) if most >= least else 0


def factor_shapes(shape: Shape, rank: int) -> dict[str, Shape]:
    """Return the shapes of the factors of one inner weight: x (n, R), y (m, R) and, if k₁k₂ > 1, t (R, R, k₁, k₂).

    >>> factor_shapes((64, 32, 3, 3), 8)
    {'x': (64, 8), 'y': (32, 8), 't': (8, 8, 3, 3)}
    """
    shapes: dict[str, Shape] = {"x": (shape[0], rank), "y": (shape[1], rank)}
    return {**shapes, "t": (rank, rank, *shape[2:])} if positions(shape) > 1 else shapes


def inner_weight(x: Tensor, y: Tensor, t: Tensor | None = None) -> Tensor:
    """Return X Yᵀ (n, m), or T ×₁ X ×₂ Y (n, m, k₁, k₂). With Y first, the product with X has the memory layout of the weight.

    >>> x, y, t = torch.ones(5, 2), torch.ones(3, 2), torch.ones(2, 2, 3, 3)
    >>> tuple(inner_weight(x, y).shape), tuple(inner_weight(x, y, t).shape)
    ((5, 3), (5, 3, 3, 3))
    """
    kernel = () if t is None else tuple(t.shape[2:])
    return (x @ inner_half(y, t)).view(len(x), len(y), *kernel)


def inner_half(y: Tensor, t: Tensor | None = None) -> Tensor:
    """Return the matrix that X is multiplied by: Yᵀ (R, m), or T ×₂ Y as (R, m·k₁k₂)."""
    if t is None:
        return y.T
    rank, q = y.shape[1], positions(tuple(t.shape))
    half = t.reshape(rank, rank, q).transpose(1, 2) @ y.T  # (R, q, R) · (R, m), one product over all R·q rows
    return half.transpose(1, 2).reshape(rank, -1)


class HadamardProduct(torch.autograd.Function):
    """(X₁H₁) ⊙ (X₂H₂), or (X₁H₁) ⊙ (X₂H₂ + 1) with ``plus_one``: a matrix (n, k) from x (n, R) and h (R, k) of each inner weight.

    Only the factors are saved for the backward pass, which multiplies them again. At most three tensors of the result's size exist at once.
    """

    generate_vmap_rule = True  # several clients' products at once

    @staticmethod
    def forward(x1: Tensor, h1: Tensor, x2: Tensor, h2: Tensor, plus_one: bool) -> Tensor:
        """Return the product (n, k)."""
        weight, second = x1 @ h1, x2 @ h2
        return weight.mul_(second.add_(1) if plus_one else second)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the factors."""
        *factors, ctx.plus_one = inputs
        ctx.save_for_backward(*factors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives by x₁, h₁, x₂ and h₂, for ``gradient`` (n, k)."""
        x1, h1, x2, h2 = ctx.saved_tensors

        def times(product: Tensor, plus_one: bool = False) -> Tensor:
            if torch.is_grad_enabled():  # the derivative will be differentiated again and needs its inputs
                return gradient * (product + 1 if plus_one else product)
            return (product.add_(1) if plus_one else product).mul_(gradient)

        # With factors in this order, and a contiguous copy of the small one, these products take a tenth less time.
        first = times(x2 @ h2, ctx.plus_one)
        by_x1, by_h1 = (h1 @ first.T).T, x1.T.contiguous() @ first
        del first
        second = times(x1 @ h1)
        return by_x1, by_h1, (h2 @ second.T).T, x2.T.contiguous() @ second, None


def he_variance(shape: Shape) -> float:
    """Return 2/(max(n, m)·k₁k₂): He initialisation. With the fan-out n alone, the weights of a classifier are too large: it diverges."""
    return 2 / (max(shape[:2]) * positions(shape))


def factor_stds(shape: Shape, ranks: tuple[int, int], variance: float) -> dict[str, float]:
    """Return the standard deviations of x (n, R₁), y (m, R₂) and t (R₁, R₂, k₁, k₂) for a product with ``variance``.

    The columns of X, of Y and of T's unfoldings have equal norms, as in U√Σ and √ΣVᵀ: a step on the factors then moves the product least.

    >>> stds = factor_stds((10, 1000), (4, 4), 0.002)
    >>> round(4 * stds["x"] ** 2 * stds["y"] ** 2, 9), round(10 * stds["x"] ** 2 / (1000 * stds["y"] ** 2), 9)
    (0.002, 1.0)
    """
    (n, m), q, rank = shape[:2], positions(shape), math.sqrt(ranks[0] * ranks[1])
    norm_sq = (variance * n * m * q / rank) ** (1 / 3 if q > 1 else 1 / 2)
    return {"x": math.sqrt(norm_sq / n), "y": math.sqrt(norm_sq / m), "t": math.sqrt(norm_sq / (rank * q))}


def draw(shape: Shape, std: float) -> Tensor:
    """Return normal entries float32 of ``shape``, scaled to a root mean square of exactly ``std``: a single draw may be near 0."""
    entries = torch.nn.init.normal_(torch.empty(shape))
    return entries * (std / entries.square().mean().sqrt())


def inner_variances(shape: Shape, plus_one: bool) -> tuple[float, float]:
    """Return the variances v₁ and v₂ of the inner weights for a product with the variance v = :func:`he_variance`.

    W₁ ⊙ W₂ has the variance v₁v₂, so v₁ = v₂ = √v. W₁ ⊙ (W₂ + 1) has the variance v₁(1 + v₂), with v₂ = √v as well.

    >>> v1, v2 = inner_variances((256, 64), plus_one=True)
    >>> round(v1 * (1 + v2) * 128, 9)
    1.0
    """
    target = he_variance(shape)
    second = math.sqrt(target)
    return (target / (1 + second) if plus_one else second), second


def inner_stds(shape: Shape, rank: int, init: Init, plus_one: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Return the standard deviations of the factors of W₁, and of those of W₂, each by name.

    ``he`` gives the composed weight the variance :func:`he_variance`. ``authors``, as in their notebook, draws every factor by He's rule
    for its own fan-in: n for X, m for Y and R·k₁k₂ for T. A composed kernel is then much smaller: its standard deviation is 8R/(n·m·k₁k₂).

    >>> he, authors = (inner_stds((512, 512, 3, 3), 52, init, False)[0] for init in ("he", "authors"))
    >>> [round((52 * stds["x"] * stds["y"] * stds["t"]) ** 2, 5) for stds in (he, authors)]
    [0.02083, 0.00018]
    """
    if init == "authors":
        stds = {name: math.sqrt(2 / fan) for name, fan in (("x", shape[0]), ("y", shape[1]), ("t", rank * positions(shape)))}
        return stds, stds
    first, second = (factor_stds(shape, (rank, rank), variance) for variance in inner_variances(shape, plus_one))
    return first, second


def jacobian_gap(
    compose: Callable[[Sequence[Tensor]], Tensor], factors: Sequence[Tensor], gradient: Tensor, step: float
) -> Tensor:
    """Return ‖W′ − (W − ηJ_W)‖₂, a scalar: the distance of W′, after a ``step`` η on the factors, from a step on W (Eq. 6 to 9).

    ``compose`` maps factors to W and is differentiable. ``gradient`` is J_W = ∂L/∂W, of the shape of W, and a constant.
    """
    weight = compose(factors)
    slopes = gradients((weight * gradient).sum(), factors, constant=False)
    moved = compose([factor - step * slope for factor, slope in zip(factors, slopes, strict=True)])
    return torch.linalg.vector_norm(moved - weight + step * gradient)
