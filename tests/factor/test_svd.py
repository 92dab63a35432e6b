"""Factorization: optimal at every rank, exact at full rank, one decomposition for all."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import EdgeflError
from edgefl.factor.layers import LowRankConv, composed_weight, factor_weights, frobenius_sq, low_rank, parameters_of_rank
from edgefl.factor.svd import factorize, roll, unroll


def matrix_of(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, columns))).float()


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 1000), st.data())
def test_every_rank_is_optimal(rows, columns, seed, data):
    matrix = matrix_of(rows, columns, seed)
    rank = data.draw(st.integers(1, min(rows, columns)))
    factors = factorize(matrix, min(rows, columns))
    left, right = factors.leading(rank)
    # Eckart–Young: no matrix of this rank is closer than the tail of the singular values.
    tail = torch.linalg.svdvals(matrix.double())[rank:].square().sum().sqrt()
    error = (matrix.double() - left.double() @ right.double()).norm()
    assert error <= tail * (1 + 1e-4) + 1e-5 * matrix.norm()
    assert torch.allclose(factors.values, torch.linalg.svdvals(matrix.double()), rtol=1e-6, atol=1e-6)


def test_smaller_ranks_are_leading_columns_of_larger_ones():
    matrix = matrix_of(12, 20, 0)
    large, small = factorize(matrix, 8), factorize(matrix, 3)
    assert torch.equal(large.left[:, :3], small.left)
    assert torch.equal(large.right[:3], small.right)


def test_factors_are_balanced():
    factors = factorize(matrix_of(12, 20, 1), 5)
    roots = factors.values[:5].sqrt()
    assert torch.allclose(factors.left.double().norm(dim=0), roots, rtol=1e-5)
    assert torch.allclose(factors.right.double().norm(dim=1), roots, rtol=1e-5)


def test_rank_deficient_and_zero_matrices_have_finite_factors():
    low = matrix_of(9, 2, 3) @ matrix_of(2, 14, 4)
    left, right = factorize(low, 6).leading(6)
    assert torch.allclose(left @ right, low, atol=1e-5)
    zero = factorize(torch.zeros(4, 5), 2)
    assert torch.equal(zero.left @ zero.right, torch.zeros(4, 5))


@pytest.mark.parametrize("rank", [0, 5])
def test_a_rank_that_does_not_fit_is_refused(rank):
    with pytest.raises(EdgeflError, match=rf"rank {rank} does not fit a matrix of shape \(4, 7\)"):
        factorize(torch.zeros(4, 7), rank)
    with pytest.raises(EdgeflError, match="rank 3 was asked of factors of rank 2"):
        factorize(matrix_of(4, 7, 0), 2).leading(3)


def test_nan_is_refused():
    with pytest.raises(EdgeflError, match="holds NaN or infinity"):
        factorize(torch.full((2, 2), float("nan")), 1)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_roll_undoes_unroll(n, m, k1, k2):
    weight = torch.arange(float(n * m * k1 * k2)).reshape(n, m, k1, k2)
    assert unroll(weight).shape == (m * k1, n * k2)
    assert torch.equal(roll(unroll(weight), (n, m, k1, k2)), weight)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_roll_undoes_unroll_of_kernels_over_signals(n, m, k):
    weight = torch.arange(float(n * m * k)).reshape(n, m, k)
    assert unroll(weight).shape == (m * k, n)
    assert torch.equal(unroll(weight), unroll(weight[..., None])), "a signal is an image of one column"
    assert torch.equal(roll(unroll(weight), (n, m, k)), weight)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (1, 0, 2), (3, 4, 2)])
def test_two_small_convolutions_over_signals_equal_the_dense_one_of_the_product(stride, padding, dilation):
    dense = torch.nn.Conv1d(3, 5, 3, stride, padding, dilation)
    check_low_rank(dense, (2, 3, 11), 2 * (3 * 3 + 5))
    u, v = factor_weights(*factorize(unroll(dense.weight), 5).leading(5), (5, 3, 3))
    assert (u.shape, v.shape) == ((5, 3, 3), (5, 5, 1))
    assert torch.allclose(composed_weight(u, v), dense.weight, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        (3, 1, 1, 1),
        ((3, 1, 2), (2, 1, 3), (1, 0, 1), 1),
        ((2, 1, 1), (1, 2, 2), (1, 0, 0), (2, 1, 1)),
        ((1, 3, 2), 1, 0, (1, 2, 1)),
    ],
)
def test_two_small_convolutions_over_volumes_equal_the_dense_one_of_the_product(kernel, stride, padding, dilation):
    dense = torch.nn.Conv3d(3, 5, kernel, stride, padding, dilation)
    first, *rest = dense.kernel_size
    check_low_rank(dense, (2, 3, 6, 5, 7), 2 * (3 * first + 5 * rest[0] * rest[1]))


def check_low_rank(dense, shape, parameters):
    """Check a layer of rank 2 in place of ``dense``, for samples of ``shape``."""
    layer = low_rank(dense, 2)
    assert sum(factor.weight.numel() for factor in (layer.u, layer.v)) == parameters_of_rank(dense, 2) == parameters
    with torch.no_grad():
        dense.weight.copy_(composed_weight(layer.u.weight, layer.v.weight))
        dense.bias.copy_(layer.v.bias)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(shape)).float()
    assert torch.allclose(layer(x), dense(x), atol=1e-5)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (1, 0, 2), ((2, 1), (1, 0), (1, 2))])
def test_two_small_convolutions_equal_the_dense_one_of_the_product(stride, padding, dilation):
    dense = torch.nn.Conv2d(3, 5, 3, stride, padding, dilation)
    check_low_rank(dense, (2, 3, 9, 8), 2 * (3 * 3 + 5 * 3))


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "same", "dilation": (2, 1)},
        {"padding": "valid", "stride": (2, 1)},
        {"padding": (2, 1), "padding_mode": "reflect", "stride": (1, 2)},
        {"padding": (1, 3), "padding_mode": "circular"},
        {"padding": "same", "padding_mode": "replicate"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kernel", [(3, 4), (4, 1)])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_each_of_two_small_convolutions_pads_along_its_own_axes(kernel, options):
    check_low_rank(torch.nn.Conv2d(3, 5, kernel, **options), (2, 3, 9, 8), 2 * (3 * kernel[0] + 5 * kernel[1]))


def test_factors_become_the_layers_weights():
    weight = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 4, 3, 3))).float()
    u, v = factor_weights(*factorize(unroll(weight), 12).leading(12), (6, 4, 3, 3))
    assert (u.shape, v.shape) == ((12, 4, 3, 1), (6, 12, 1, 3))
    assert torch.allclose(composed_weight(u, v), weight, atol=1e-5)


def test_frobenius_norm_is_that_of_the_product_with_its_gradient():
    layer = LowRankConv(torch.nn.Conv2d(3, 4, 3), 2).double()
    value = frobenius_sq(layer)
    product = composed_weight(layer.u.weight, layer.v.weight).square().sum()
    assert torch.allclose(value, product)
    parameters = [layer.u.weight, layer.v.weight]
    for mine, true in zip(torch.autograd.grad(value, parameters), torch.autograd.grad(product, parameters), strict=True):
        assert torch.allclose(mine, true)


def test_grouped_convolutions_cannot_be_factorized():
    with pytest.raises(EdgeflError, match="only convolutions of one group"):
        low_rank(torch.nn.Conv2d(4, 4, 3, groups=2), 1)
