"""Dropout in training graphs: its masks are a hash of the step's seed, the layer and the place of each entry.

Standard operators have no random numbers that every runtime draws alike. The hash uses whole numbers below 2⁶³ only, so that all runtimes,
torch included, make the same masks. It is the 32-bit finalizer of Mueller, two rounds of x ← (x ⊕ ⌊x/2¹⁶⌋)·m mod 2³².
"""

import math
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from edgefl.onnxgrad.borders import attended, repeated
from edgefl.onnxgrad.errors import EdgeflError

_MODULUS, _HALF, _FACTOR, _APART = 2**32, 2**16, 0x45D9F3B, 0x9E3779B1
_LOWEST = -1.7580993408473766
"""The limit of SELU for −∞."""


def mask(like: Tensor, shape: tuple[int, ...], p: float, seed: Tensor, layer: int) -> Tensor:
    """Return the mask of a dropout layer, ``shape``, of the type of ``like``: 0 with probability ``p``, else 1/(1 − p).

    Args:
        like: the input of the layer.
        shape: sizes of the mask; it is multiplied with the input.
        p: probability in [0, 1].
        seed: whole number in float32, below 2²⁴.
        layer: how many dropout layers the step called before.

    >>> mask(torch.zeros(2, 4), (2, 4), 0.5, torch.tensor(1.0), 0)
    tensor([[0., 2., 0., 0.],
            [2., 0., 0., 2.]])
    """
    kept = _numbers(shape, seed, layer) >= round(p * _MODULUS)
    return kept.to(like.dtype) * (1 / (1 - p) if p < 1 else 0.0)


def _numbers(shape: tuple[int, ...], seed: Tensor, layer: int) -> Tensor:
    """Return whole numbers below 2³² in int64, of the given ``shape``: the hashes of seed, layer and place."""
    start = _hashed((seed.to(torch.int64) + layer * _APART) % _MODULUS)
    places: Any = 0
    for axis, size in enumerate(shape):
        # torch traces the free size as a symbol; shape inference does not find the size of its arange.
        places_here = torch.arange(size) if isinstance(size, int) else torch.ones(size, dtype=torch.int64).cumsum(0) - 1
        places = places + places_here.reshape(-1, *[1] * (len(shape) - axis - 1)) * math.prod(shape[axis + 1 :])
    return _hashed((places + start) % _MODULUS)


def _hashed(numbers: Tensor) -> Tensor:
    """Return the hashes, below 2³², of int64 ``numbers`` below 2³²."""
    for _ in range(2):
        numbers = _folded(numbers) * _FACTOR % _MODULUS
    return _folded(numbers)


def _folded(numbers: Tensor) -> Tensor:
    # In float64, which is exact here: the exporter divides whole numbers in float32.
    return numbers ^ (numbers.double() / _HALF).floor().to(torch.int64)


class SeededDropout(TorchFunctionMode):
    """Within this context torch's dropout functions draw their masks by :func:`mask` from ``seed``; EdgeflError for one that cannot.

    A layer that gradient checkpointing calls again has the same mask. It is recognised by the state of torch's generator, which
    checkpointing restores: each call of a layer advances it.
    """

    def __init__(self, seed: Tensor) -> None:
        super().__init__()
        self.seed = seed
        self.layers: dict[object, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``, or what replaces it here."""
        replaced = _REPLACED.get(func)
        return func(*args, **(kwargs or {})) if replaced is None else replaced(self, func, *args, **(kwargs or {}))

    def drop(self, x: Tensor, p: float, axes: int | None = None) -> Tensor:
        """Return ``x`` with entries dropped, or with ``axes`` all entries that have the same place on this many first axes."""
        if p == 0:
            return x
        own = x.dim() if axes is None else axes
        return x * mask(x, (*x.shape[:own], *[1] * (x.dim() - own)), p, self.seed, self._layer())

    def uniform(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return numbers in [0, 1), multiples of 2⁻²⁴, of the type of ``like``."""
        return (_numbers(shape, self.seed, self._layer()).double() / 2**8).floor().to(like.dtype) / 2**24

    def _layer(self) -> int:
        """Return how many dropout layers the step called before the present one."""
        state: object = len(self.layers)
        if not torch.compiler.is_exporting():  # a graph has each call once
            state = torch.get_rng_state().numpy().tobytes()
            torch.rand(())
        return self.layers.setdefault(state, len(self.layers))


def _dropping(axes: int | None) -> Any:
    """Return dropout of entries, or of all that have the same place on this many first axes."""

    def dropped(
        mode: SeededDropout, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        return mode.drop(input, p, axes) if training else input

    return dropped


def _alpha_dropout(
    mode: SeededDropout, func: Any, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Set entries to the lowest value of SELU, then scale and shift such that mean and variance stay, as in Klambauer et al. (2017)."""
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0
    kept = mode.drop(torch.ones_like(input), p, 2 if func is F.feature_alpha_dropout else None) * (1 - p)
    scale = ((1 - p) * (1 + p * _LOWEST**2)) ** -0.5
    return (input * kept + _LOWEST * (1 - kept)) * scale - scale * _LOWEST * p


def _leaky(
    mode: SeededDropout,
    func: Any,
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Compute RReLU: in training each entry that is not positive has a slope of its own."""
    if not training:
        return F.leaky_relu(input, (lower + upper) / 2)
    slope = lower + (upper - lower) * mode.uniform(input, tuple(input.shape))
    return torch.where(input > 0, input, input * slope)


def _fractional(axes: int) -> Any:
    """Return fractional pooling with the samples that torch would draw: one for each map and axis."""

    def pooled(mode: SeededDropout, func: Any, input: Tensor, *args: Any, **options: Any) -> Any:
        names = "kernel_size", "output_size", "output_ratio", "return_indices", "_random_samples"
        given = dict(zip(names, args, strict=False)) | options
        if given.get("_random_samples") is None:
            maps = input.shape[:-axes] if input.dim() == axes + 2 else (1, input.shape[0])
            given["_random_samples"] = mode.uniform(input, (*maps, axes))
        return func(input, **given)

    return pooled


def _attention(mode: SeededDropout, func: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
    """Compute attention by its definition if it drops weights."""
    names = ("attn_mask", "dropout_p", "is_causal")
    options |= dict(zip(names, args, strict=False))
    p = options.pop("dropout_p", 0.0)
    if not p:
        return func(query, key, value, **options)
    if options.get("enable_gqa"):  # several heads of queries share one of keys and values
        key, value = (repeated(x, query.shape[-3] // x.shape[-3]) for x in (key, value))
    scale = options.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores, given = query @ key.transpose(-2, -1) * scale, options.get("attn_mask")
    if options.get("is_causal"):
        given = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    weights, seen = attended(scores, given)
    found = mode.drop(weights, p) @ value
    return found if seen is None else found * seen


def _within(func: Any) -> Any:
    """Return what calls ``func`` such that the context applies to the functions that it calls, also from inside the context's handler."""
    # A copy without the check for contexts at its beginning.
    names = {**func.__globals__, "has_torch_function": lambda tensors: False}
    unchecked = FunctionType(func.__code__, names, argdefs=func.__defaults__)

    def call(mode: SeededDropout, func: Any, *args: Any, **options: Any) -> Any:
        with mode:
            return unchecked(*args, **options)

    return call


def _recurrent(mode: SeededDropout, func: Any, *args: Any) -> Any:
    """Compute a recurrent layer; one that drops entries between its layers, layer by layer."""
    x, states, weights, biased, layers, dropout, train, both, first = args
    if not (train and dropout and layers > 1):
        return func(*args)
    if not isinstance(biased, bool):  # torch's form for packed sequences has other arguments
        raise EdgeflError(f"dropout inside torch.{func.__name__} of a packed sequence has no ONNX form; give padded sequences")
    several, each = isinstance(states, (tuple, list)), len(weights) // layers
    ends = []
    for layer in range(layers):
        here = slice(layer * (1 + both), (layer + 1) * (1 + both))
        own = tuple(state[here] for state in states) if several else states[here]
        x, *end = func(x, own, weights[layer * each : (layer + 1) * each], biased, 1, 0.0, train, both, first)
        ends.append(end)
        x = mode.drop(x, dropout) if layer + 1 < layers else x
    return (x, *map(torch.cat, zip(*ends, strict=True)))


_REPLACED: dict[Any, Any] = {
    F.dropout: _dropping(None),
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), _dropping(2)),
    **dict.fromkeys((F.alpha_dropout, F.feature_alpha_dropout), _alpha_dropout),
    F.rrelu: _leaky,
    **dict.fromkeys((F.fractional_max_pool2d, F.fractional_max_pool2d_with_indices), _fractional(2)),
    **dict.fromkeys((F.fractional_max_pool3d, F.fractional_max_pool3d_with_indices), _fractional(3)),
    F.multi_head_attention_forward: _within(F.multi_head_attention_forward),
    # With gradient checkpointing a backward pass calls layers again.
    **{func: _within(func) for func in (torch.autograd.backward, torch.autograd.grad)},
    F.scaled_dot_product_attention: _attention,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
}
