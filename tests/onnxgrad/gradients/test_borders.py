"""Derivatives at bounds, ties, zeros and for saturated values are those of torch, for every function that has such a border."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from border_case import check_borders
from torch import Tensor

INFINITY = math.inf
LINE = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, -6.0, 18.0, -18.0, 20.0, -20.0, 100.0, -100.0, 1e4, -1e4, 1e-8, -1e-8]
NEAR = [value for value in LINE if abs(value) <= 6]
POSITIVE = [0.0, 1e-8, 0.5, 1.0, 2.0, 20.0, 100.0, 1e4]
SHARES = [0.0, 1.0, 0.5, 0.25, 1e-20, 1e-12, 1e-6, 1 - 6e-8]
TIES = [
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [2.0, -1.0, 2.0, 2.0, -1.0, -1.0],
    [-3.0, -3.0, 5.0, 5.0, 1.0, 0.0],
    [1e4, 1e4, -1e4, 0.0, 0.0, 0.0],
]
"""Two rows of three entries."""
MASKED = [[0.0, -INFINITY, 0.0, -INFINITY, 1.0, 2.0]]
"""Logits that a mask left out."""


def rows(x: Tensor) -> Tensor:
    return x.reshape(-1, 2, 3)


def halves(x: Tensor) -> Tensor:
    """Return targets 0 and 1, in turns."""
    return torch.arange(x.shape[1]).remainder(2).to(x.dtype).expand_as(x)


def signs(x: Tensor) -> Tensor:
    return 2 * halves(x) - 1


def first_class(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[0], dtype=torch.long)


BOUNDS = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "relu6_": lambda x: F.relu6(x * 1, inplace=True),
    "hardtanh": F.hardtanh,
    "hardtanh_": lambda x: F.hardtanh_(x * 1, -3.0, 6.0),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp-min": lambda x: x.clamp(min=0),
    "clamp-max": lambda x: x.clamp(max=1),
    "clamp_": lambda x: (x * 1).clamp_(0, 1),
    "clamp_min_": lambda x: (x * 1).clamp_min_(0),
    "clip": lambda x: torch.clip(x, -3, 3),
    "clamp-of-a-view": lambda x: (lambda z: (z[:, :3].clamp_(0, 1), z)[1])(x * 1),
    "clamp-by-tensors": lambda x: torch.clamp(x, torch.zeros(x.shape[-1]), torch.ones(x.shape[-1])),
    "clamp-by-own-tensors": lambda x: torch.clamp(x, x.roll(1, -1), x.roll(2, -1)),
    "clamp-between-equal-tensors": lambda x: torch.clamp(x, x.roll(1, -1), x.roll(1, -1)),
    "relu-of-clamp": lambda x: torch.relu(x.clamp(-1, 1)),
    "clamp-of-relu": lambda x: torch.relu(x).clamp(max=6),
    "clamp-of-clamp": lambda x: x.clamp(-1, 1).clamp(0, 2),
    "maximum": lambda x: torch.maximum(x, torch.zeros(())),
    "minimum-of-maximum": lambda x: torch.minimum(torch.maximum(x, torch.tensor(-1.0)), torch.tensor(1.0)),
    "fmax": lambda x: torch.fmax(x, torch.zeros(())),
    "fmin": lambda x: torch.fmin(x, x.flip(1)),
    "max-of-two": lambda x: torch.max(x, x.flip(1)),
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
}
ACTIVATIONS = {
    "abs": torch.abs,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "elu": lambda x: F.elu(x, 2.0),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 2.0),
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, 2.0, 5.0),
    "logsigmoid": F.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanhshrink": F.tanhshrink,
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(1)),
    "logaddexp2": lambda x: torch.logaddexp2(x, torch.zeros(())),
    "atan2": lambda x: torch.atan2(x, x.flip(1)),
    "atan2-of-0": lambda x: torch.atan2(torch.zeros(()), x),
    "sqrt-of-relu": lambda x: torch.sqrt(torch.relu(x)),
    "sqrt-of-abs": lambda x: x.abs().sqrt(),
    "sqrt-of-clamp": lambda x: torch.sqrt(x.clamp(min=0)),
    "sqrt-of-maximum": lambda x: torch.sqrt(torch.maximum(x, torch.zeros(()))),
    "nan_to_num": torch.nan_to_num,
}
LOSSES = {
    "sigmoid-bce": lambda x: F.binary_cross_entropy(torch.sigmoid(x), halves(x), reduction="none"),
    "squeezed": lambda x: F.binary_cross_entropy(torch.sigmoid(x)[:, None].squeeze(1), 1 - halves(x), reduction="none"),
    "logits": lambda x: F.binary_cross_entropy_with_logits(x, halves(x), reduction="none"),
    "weighted": lambda x: F.binary_cross_entropy_with_logits(x, halves(x), pos_weight=torch.tensor(3.0), reduction="none"),
    "hinge": lambda x: F.hinge_embedding_loss(x, signs(x), reduction="none"),
    "margin": lambda x: F.margin_ranking_loss(x, torch.zeros_like(x), signs(x), margin=1.0, reduction="none"),
    "l1": lambda x: F.l1_loss(x, torch.zeros_like(x), reduction="none"),
    "smooth-l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), beta=0.5, reduction="none"),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none"),
}
OF_SHARES = {
    "bce": lambda x: F.binary_cross_entropy(x, halves(x), reduction="none"),
    "bce-mean": lambda x: F.binary_cross_entropy(x, halves(x)).reshape(1, 1),
    "bce-sum": lambda x: (
        F.binary_cross_entropy(x, halves(x), torch.linspace(0.5, 2, 8), reduction="sum").reshape(1, 1) / x.shape[0]
    ),
    "bce-of-target": lambda x: F.binary_cross_entropy(torch.full_like(x, 0.3), x, reduction="none"),
    "kl-of-target": lambda x: F.kl_div(torch.zeros_like(x), x, reduction="none"),
    "logit": lambda x: torch.logit(x, 1e-3),
}
ROOTS = {
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "log": torch.log,
    "log1p": torch.log1p,
    "power": lambda x: x**1.5,
    "root": lambda x: x**0.5,
    "xlogy": lambda x: torch.xlogy(x, x),
    "reciprocal": torch.reciprocal,
}
ALONG_AN_AXIS = {
    "amax": lambda x: rows(x).amax(2),
    "amin": lambda x: rows(x).amin(1),
    "max": lambda x: rows(x).max(2).values,
    "max-kept": lambda x: rows(x).max(1, keepdim=True)[0].flatten(1),
    "min": lambda x: rows(x).min(-1)[0],
    "sort": lambda x: x.sort(1)[0],
    "std": lambda x: rows(x).std(2),
    "std-of-population": lambda x: rows(x).std(2, unbiased=False),
    "std-over-all": lambda x: rows(x).std((1, 2), correction=0, keepdim=True),
    "std-mean": lambda x: torch.std_mean(rows(x), 2)[0],
    "by-std": lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5),
    **{f"norm-{p}": lambda x, p=p: rows(x).norm(p, 2) for p in (0.5, 1, 1.5, 2, 3, INFINITY)},
    "normalize": lambda x: F.normalize(rows(x), dim=2),
    "cosine": lambda x: F.cosine_similarity(rows(x), rows(x).flip(1), dim=2),
    **{f"cdist-{p}": lambda x, p=p: torch.cdist(rows(x), rows(x).flip(1), p) for p in (1.0, 2.0, 3.0, INFINITY)},
    "root-of-mean-square": lambda x: x.square().mean(1, keepdim=True).sqrt(),
    "softmax": lambda x: rows(x).softmax(2),
    "log-softmax": lambda x: rows(x).log_softmax(2),
    "logsumexp": lambda x: rows(x).logsumexp(2),
    "prod": lambda x: rows(x).prod(2),
}
POOLS = {
    "max": lambda x: F.max_pool1d(x[:, None], 3, 1, 1),
    "max-of-relu": lambda x: F.max_pool1d(torch.relu(x[:, None]), 3),
    "adaptive-odd": lambda x: F.adaptive_max_pool1d(x[:, None], 4),
    "adaptive-odd-2d": lambda x: F.adaptive_max_pool2d(x.reshape(-1, 1, 3, 2), (2, 1)),
    "adaptive-even": lambda x: F.adaptive_max_pool2d(x.reshape(-1, 1, 2, 3), (2, 3)),
    "adaptive-one": lambda x: F.adaptive_max_pool2d(x.reshape(-1, 1, 2, 3), 1),
    "lp-1d": lambda x: F.lp_pool1d(x[:, None], 2, 3),
    "lp-2d": lambda x: F.lp_pool2d(rows(x)[:, None], 3, 2),
}
OF_LOGITS = {
    "cross-entropy": lambda x: F.cross_entropy(x, first_class(x)).reshape(1, 1),
    "nll": lambda x: F.nll_loss(x.log_softmax(1), first_class(x)).reshape(1, 1),
    "each": lambda x: F.cross_entropy(x, first_class(x), reduction="none")[:, None],
    "selected": lambda x: x.log_softmax(1)[:, :1],
    "gathered": lambda x: x.log_softmax(1).gather(1, first_class(x)[:, None]),
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
}
FAMILIES = {
    "bounds": (BOUNDS, [LINE]),
    "activations": (ACTIVATIONS, [LINE]),
    "losses": (LOSSES, [LINE]),
    "shares": (OF_SHARES, [SHARES]),
    "roots": (ROOTS, [POSITIVE]),
    "sinc": ({"sinc": torch.sinc}, [NEAR]),
    "log-of-sigmoid": ({"log": lambda x: torch.log(torch.sigmoid(x))}, [[-80.0, -50.0, -20.0, -18.0, -10.0, 0.0, 20.0]]),
    "axes": (ALONG_AN_AXIS, TIES),
    "pools": (POOLS, TIES),
    "logits": (OF_LOGITS, MASKED),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_borders(family: str) -> None:
    functions, values = FAMILIES[family]
    check_borders(functions, values)
