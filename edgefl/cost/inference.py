"""What an inference runtime holds: liveness over the traced graph, with the two economies that every runtime makes.

Unlike eager torch, a runtime knows the whole graph: it frees a value after its last use, lets an element-wise operation write over an
input that nobody reads again, folds normalisation with fixed statistics into the layer before it, and computes no output that nobody
reads.
"""

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgefl.cost.macs import aten


@dataclass(frozen=True, slots=True)
class Step:
    """One operation: storages that it reads and writes, by number, whether it may write over an input, and bytes only while it runs."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    overwrites: bool
    layer: str
    scratch_bytes: int = 0


_FOLDED = {aten._native_batch_norm_legit_no_training, aten.native_batch_norm, aten._batch_norm_no_update, aten.native_dropout}


def may_overwrite(operation: object) -> bool:
    """Whether a runtime lets this operation write its result over an input of the same size."""
    return torch.Tag.pointwise in getattr(operation, "tags", ()) or getattr(operation, "overloadpacket", None) in _FOLDED


def scratch_bytes(operation: Any, args: tuple[Any, ...], out: Any) -> int:
    """Return the room that onnxruntime's kernel asks for while it runs, on one thread: that of convolutions and LSTM layers.

    A convolution unrolls its input, the whole of it where a layer has more filters than output positions, else in pieces of 64 KiB
    (MLAS, conv.cpp); 1×1 convolutions do not. An LSTM holds the four gates of every step, and six states (deep_cpu_lstm.cc).
    """
    if operation is aten.mkldnn_rnn_layer.default:
        (steps, samples, _), hidden = args[0].shape, int(args[2].shape[-1])
        return int(samples * hidden * (4 * steps + 6) * args[0].element_size())
    if operation is not aten.convolution.default or args[6]:
        return 0
    weight, stride, padding = args[1], args[3], args[4]
    if all(k == 1 for k in weight.shape[2:]) and all(s == 1 for s in stride) and not any(padding):
        return 0
    positions, groups = math.prod(out.shape[2:]), args[8]
    if weight.shape[0] // groups > positions:
        return positions * math.prod(weight.shape[1:]) * out.element_size()
    return 64 * 1024


def runtime_peak(
    steps: Sequence[Step], sizes: Sequence[int], inputs: Collection[int], results: Collection[int]
) -> tuple[int, str]:
    """Return the most bytes alive at once, and the layer that runs then.

    Args:
        steps: the operations in order.
        sizes: bytes of every storage.
        inputs: storages of the network's inputs, which the caller holds throughout.
        results: storages of its outputs, which stay.

    >>> relu = Step((1,), (2,), overwrites=True, layer="relu")
    >>> chain = [Step((0,), (1,), False, "conv"), relu, Step((2,), (3,), False, "fc")]
    >>> runtime_peak(chain, [8, 100, 100, 4], inputs={0}, results={3})
    (112, 'fc')
    """
    last = {number: position for position, step in enumerate(steps) for number in (*step.reads, *step.writes)}
    last |= dict.fromkeys(results, len(steps))
    live = peak = sum(sizes[number] for number in inputs)
    layer, alive = "", set(inputs)
    for position, step in enumerate(steps):
        fresh = [n for n in step.writes if n not in alive and (last[n] > position)]
        dying = [n for n in {*step.reads, *step.writes} if n in alive and last[n] == position and n not in inputs]
        for number in fresh:
            over = next((n for n in dying if step.overwrites and sizes[n] == sizes[number]), None)
            if over is not None:
                dying.remove(over)
                alive.discard(over)
                live -= sizes[over]
            alive.add(number)
            live += sizes[number]
        if live + step.scratch_bytes > peak:
            peak, layer = live + step.scratch_bytes, step.layer
        for number in dying:
            alive.discard(number)
            live -= sizes[number]
    return peak, layer


@contextlib.contextmanager
def spelled_out() -> Iterator[None]:
    """Trace attention and transformer blocks as products and a softmax, as an exported graph has them."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
