"""How onnxruntime runs the operations of an exported network: which kernels, what they write, and what they need besides.

The rules are those of onnxruntime 1.31 on one thread, at its extended level of optimization. They say for each operation of torch

- whether its result is the input under another shape (:data:`SHARES`);
- whether it may be written over the input (:data:`OVERWRITES`): so may activations, and sums and products never;
- which neighbours become one kernel with it: normalization and scale after a convolution, an activation, a scale or transposition before a product;
- how many kernels it consists of, with values between them, and which temporary memory a kernel allocates.

Any other operation is one kernel that writes its results to memory of their own.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.cost.calls import Call, Value

SHARES = frozenset(
    "view _unsafe_view reshape _reshape_alias squeeze unsqueeze squeeze_ unsqueeze_ flatten detach detach_ alias clone lift_fresh"
    " native_dropout contiguous".split()
)
OVERWRITES = frozenset(
    "relu sigmoid tanh leaky_relu elu hardsigmoid hardtanh clamp _softmax _log_softmax log_sigmoid_forward".split()
)
_TRANSPOSES = frozenset("t transpose permute numpy_T movedim swapaxes mT".split())
_ALL_RESULTS = frozenset("split split_with_sizes unsafe_split chunk unbind topk sort".split())
_PRODUCTS = frozenset("mm bmm addmm baddbmm".split())
_NORMS = frozenset("_native_batch_norm_legit_no_training native_batch_norm _batch_norm_no_update cudnn_batch_norm".split())
_FUSED = frozenset("relu sigmoid tanh leaky_relu hardtanh clamp hardsigmoid".split())
_LATE = 1 << 40


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: buffers that it reads, buffers that it writes with their bytes, and how.

    Attributes:
        overwrites: buffer that its one result may replace, if nothing reads it later.
        scratch: bytes of temporary buffers, which are freed when the kernel ends.
        place: kernels later in the graph have a larger one.
        layer: layer of the network.
    """

    reads: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    overwrites: int | None
    scratch: tuple[int, ...]
    place: int
    layer: str


class Lowering:
    """Translates the operations of a network, in order, into kernels.

    Args:
        calls: the operations, without those whose results nothing reads.
        values: shapes and bytes of all values.
        results: values that the network returns.
    """

    def __init__(self, calls: Sequence[Call], values: Sequence[Value], results: Collection[int]) -> None:
        self.values = values
        self.kernels: list[Kernel] = []
        self._calls = [call for call in live(calls, results) if not self._constant(call)]
        self._made_by = {number: call for call in self._calls for number in call.writes}
        self._readers: defaultdict[int, list[Call]] = defaultdict(list)
        for call in self._calls:
            for number in call.reads:
                self._readers[number].append(call)
        self._results = results
        self._buffers: dict[int, int] = {}
        self._late: set[int] = set()
        self._extra = len(values)
        for call in self._calls:
            rule = _RULES.get(call.name, Lowering._plain)
            rule(self, call)

    def buffer(self, number: int) -> int:
        """Return the buffer that holds a value."""
        return self._buffers.get(number, number)

    def _constant(self, call: Call) -> bool:
        return bool(call.writes) and all(self.values[number].constant for number in call.writes)

    def _inputs(self, call: Call) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.buffer(number) for number in call.reads if not self.values[number].constant))

    def _used(self, call: Call) -> list[int]:
        every = call.name in _ALL_RESULTS
        return [number for number in call.writes if every or number in self._readers or number in self._results]

    def _emit(
        self,
        call: Call,
        reads: Sequence[int],
        writes: Sequence[tuple[int, int]],
        overwrites: int | None = None,
        scratch: Sequence[int] = (),
        late: bool = False,
    ) -> None:
        place = len(self.kernels) + (_LATE if late else 0)
        self.kernels.append(Kernel(tuple(reads), tuple(writes), overwrites, tuple(scratch), place, call.layer))

    def _between(self, call: Call, reads: Sequence[int], size: int, overwrites: int | None = None, scratch: Sequence[int] = ()) -> int:
        """Emit a kernel whose result is a value of the graph that torch has not; return its buffer."""
        self._extra += 1
        self._emit(call, reads, [(self._extra, size)], overwrites, scratch)
        return self._extra

    def _size(self, number: int) -> int:
        return self.values[number].bytes

    def _only_reader(self, number: int) -> Call | None:
        """Return the operation that alone reads a value, seen through changes of shape; None if several do, or the caller."""
        readers = self._readers.get(number, [])
        if number in self._results or len(readers) != 1:
            return None
        return self._only_reader(readers[0].writes[0]) if readers[0].name in SHARES else readers[0]

    def _maker(self, number: int, seen_through: bool = False) -> Call | None:
        """Return the operation that makes a value which only one other operation reads."""
        call = self._made_by.get(number)
        if call is None or number in self._results or len(self._readers.get(number, [])) != 1:
            return None
        return self._maker(call.reads[0], True) if seen_through and call.name in SHARES else call

    # -- rules ---------------------------------------------------------------------------------------------------------------------

    def _plain(self, call: Call) -> None:
        writes = [(number, self._size(number)) for number in self._used(call)]
        over = self._inputs(call)[0] if call.name.rstrip("_") in OVERWRITES and self._inputs(call) else None
        maker = self._maker(call.reads[0]) if call.reads else None
        late = call.name.rstrip("_") in _FUSED and maker is not None and maker.name in ("convolution", *_NORMS)
        self._emit(call, self._inputs(call), writes, over, (), late)

    def _shared(self, call: Call) -> None:
        inputs = self._inputs(call)
        for number in call.writes:
            if inputs:
                self._buffers[number] = inputs[0]

    def _convolution(self, call: Call) -> None:
        out = call.writes[0]
        self._emit(call, self._inputs(call), [(out, self._size(out))], None, [convolution_scratch(call.args, self.values[out])])

    def _normalization(self, call: Call) -> None:
        """Fold fixed statistics into the layer before, if nothing else reads its result."""
        maker = self._maker(call.reads[0])
        if maker is not None and maker.name in ("convolution", "addmm", "mm"):
            self._shared(call)
        else:
            self._plain(call)

    def _transposition(self, call: Call) -> None:
        """Let a product read a transposed matrix as it is; transpose for any other reader."""
        out = call.writes[0]
        shape, before = self.values[out].shape, self.values[call.reads[0]].shape
        if [n for n in shape if n != 1] == [n for n in before if n != 1] and sorted(shape) == sorted(before) and _keeps_order(shape, before, call):
            self._shared(call)
            return
        readers = self._readers[out]
        if readers and all(self._multiplies(reader) for reader in readers) and _by_product(call, before):
            self._shared(call)
        else:
            self._plain(call)

    def _multiplies(self, call: Call) -> bool:
        if call.name in ("expand", "view", "_unsafe_view", "clone") and self.values[call.writes[0]].bytes == self._size(call.reads[0]):
            return len(call.writes) == 1 and all(self._multiplies(r) for r in self._readers[call.writes[0]])
        return call.name in ("bmm", "baddbmm")

    def _expansion(self, call: Call) -> None:
        if self._size(call.writes[0]) == self._size(call.reads[0]):
            self._shared(call)
        else:
            self._plain(call)

    def _selection(self, call: Call) -> None:
        """Take all entries of an axis by one Split, as onnxruntime does where the graph takes them one by one."""
        source = call.reads[0]
        axis = call.args[1] if len(call.args) > 1 else 0
        count = self.values[source].shape[axis]
        same = [c for c in self._readers[source] if c.name == "select" and (c.args[1] if len(c.args) > 1 else 0) == axis]
        every = count > 1 and len(same) == count == len({c.args[2] % count for c in same}) == len(self._readers[source])
        if not every:
            self._plain(call)
        elif call is same[0]:
            writes = [(c.writes[0], self._size(c.writes[0])) for c in same]
            self._emit(call, self._inputs(call), writes, late=True)

    def _slice(self, call: Call) -> None:
        self._expansion(call)

    def _product(self, call: Call) -> None:
        """Multiply; add the bias of a layer with several positions per sample by a kernel of its own."""
        out = call.writes[0]
        if not self._positions(call):
            self._emit(call, self._inputs(call), [(out, self._size(out))])
            return
        reader = self._only_reader(out)
        if reader is not None and reader.name == "gelu":
            self._emit(call, self._inputs(call), [(out, self._size(out))])  # the next kernel adds the bias too
        elif reader is not None and reader.name == "add" and self._skips(reader):
            self._emit(call, self._inputs(call), [(out, self._size(out))])
        else:
            product = self._between(call, self._inputs(call), self._size(out))
            self._emit(call, [product], [(out, self._size(out))])

    def _positions(self, call: Call) -> bool:
        """Whether a product with a bias is that of a linear layer over more than one axis, which is a MatMul and not a Gemm."""
        if call.name != "addmm" or not self.values[call.reads[0]].constant:
            return False
        before = self._made_by.get(next((n for n in call.reads if not self.values[n].constant), -1))
        readers = self._readers.get(call.writes[0], [])
        if before is None or before.name not in SHARES or len(readers) != 1 or readers[0].name not in SHARES:
            return False
        lead, back = self.values[before.reads[0]].shape[:-1], self.values[readers[0].writes[0]].shape[:-1]
        return len(lead) > 1 and lead == back

    def _skips(self, call: Call) -> bool:
        """Whether a sum is read by a layer normalization alone, which adds as well (SkipLayerNormalization)."""
        out = call.writes[0]
        reader = self._only_reader(out)
        shapes = {self.values[number].shape for number in call.reads}
        return (
            reader is not None and reader.name == "native_layer_norm" and len(call.reads) == 2
            and shapes == {self.values[out].shape} and len(self.values[out].shape) == 3
        )  # fmt: skip

    def _sum(self, call: Call) -> None:
        if self._skips(call):
            self._buffers[call.writes[0]] = self._extra = self._extra + 1
            self._skipped = getattr(self, "_skipped", {})
            self._skipped[self._extra] = self._inputs(call)
        elif call.name == "add" and (maker := self._maker(call.reads[0], True)) is not None and maker.name == "mm" and self._bias(call):
            reader = self._only_reader(call.writes[0])
            if reader is not None and reader.name == "gelu":
                self._shared(call)
            else:
                self._plain(call)
        else:
            self._scale(call)

    def _bias(self, call: Call) -> bool:
        return len(call.reads) == 2 and self.values[call.reads[1]].constant and len(self.values[call.reads[1]].shape) == 1

    def _scale(self, call: Call) -> None:
        """Fold a factor or term of each channel into the convolution before it, and a number into the product that follows."""
        maker = self._maker(call.reads[0]) if call.reads else None
        shapes = [self.values[n].shape for n in call.reads if self.values[n].constant]
        of_channels = len(call.reads) == 2 and len(shapes) == 1 and len(shapes[0]) > 2 and math.prod(shapes[0][-2:]) == 1
        if maker is not None and maker.name == "convolution" and of_channels and call.name in ("mul", "add"):
            self._shared(call)
        elif call.name in ("mul", "div") and self._number(call) and (self._before_product(call.writes[0]) or self._after_product(call)):
            self._shared(call)
        else:
            self._plain(call)

    def _number(self, call: Call) -> bool:
        others = [n for n in call.reads[1:] if not (self.values[n].constant and math.prod(self.values[n].shape) == 1)]
        return bool(call.reads) and not others and not self.values[call.reads[0]].constant

    def _before_product(self, number: int) -> bool:
        readers = self._readers.get(number, [])
        return bool(readers) and all(
            reader.name in ("bmm", "baddbmm")
            or (reader.name in ("expand", *SHARES, *_TRANSPOSES) and self._before_product(reader.writes[0]))
            for reader in readers
        )

    def _after_product(self, call: Call) -> bool:
        maker = self._maker(call.reads[0], True)
        return maker is not None and maker.name in ("bmm", "baddbmm")

    def _layer_norm(self, call: Call) -> None:
        source = self.buffer(call.reads[0])
        reads = getattr(self, "_skipped", {}).get(source, self._inputs(call))
        out = call.writes[0]
        self._emit(call, reads, [(out, self._size(out))], late=reads is not self._inputs(call))

    def _gelu(self, call: Call) -> None:
        out = call.writes[0]
        maker = self._maker(call.reads[0], True)
        biased = maker is not None and ((maker.name == "addmm" and self._positions(maker)) or (maker.name == "add" and self._bias(maker)))
        self._emit(call, self._inputs(call), [(out, self._size(out))], None, [self._size(out)] if biased else [], late=biased)

    def _group_norm(self, call: Call) -> None:
        out, scaled = call.writes[0], any(self.values[number].constant for number in call.reads)
        size, buffer = self._size(out), self._inputs(call)
        if not scaled:
            self._emit(call, buffer, [(out, size)])
            return
        normal = self._between(call, buffer, size)
        factored = self._between(call, [normal], size)
        self._emit(call, [factored], [(out, size)])

    def _hardswish(self, call: Call) -> None:
        self._gated(call, [("gate", None)])

    def _mish(self, call: Call) -> None:
        self._gated(call, [("softplus", None), ("tanh", 0)])

    def _gated(self, call: Call, steps: Sequence[tuple[str, int | None]]) -> None:
        """Multiply the input by a function of it, which is a value of its own."""
        (source, *_), out = self._inputs(call), call.writes[0]
        gate = source
        for _, over in steps:
            gate = self._between(call, [gate], self._size(out), gate if over is not None else None)
        self._emit(call, [source, gate], [(out, self._size(out))])

    def _chosen(self, call: Call) -> None:
        """Choose by a condition: the kernel Where holds both choices, masked, at once."""
        out = call.writes[0]
        self._emit(call, self._inputs(call), [(out, self._size(out))], None, [self._size(out)] * 2)

    def _compared(self, call: Call) -> None:
        """Softplus and threshold: compare, compute, and choose."""
        (source, *_), out = self._inputs(call), call.writes[0]
        size = self._size(out)
        truth = self._between(call, [source], self.values[out].bytes // 4)
        other = [self._between(call, [source], size)] if call.name == "softplus" else []
        self._emit(call, [truth, *other, source], [(out, size)], None, [size] * 2)

    def _bag(self, call: Call) -> None:
        """Take the rows of a bag, weigh them, and reduce them."""
        weight, ids = (self.values[number] for number in call.reads[:2])
        out = call.writes[0]
        reads, size = self._inputs(call), math.prod(ids.shape) * weight.shape[-1] * 4
        rows = self._between(call, reads, size)
        if len(call.args) > 6 and call.args[6] is not None:
            rows = self._between(call, [rows, *reads[1:]], size)
        self._emit(call, [rows], [(out, self._size(out))])

    def _recurrent(self, call: Call) -> None:
        """Run LSTM or GRU layers: one kernel each, with the inputs and outputs of all steps, steps first."""
        source = call.args[0]
        _, _, _, _, layers, _, _, both, first = call.args
        samples, steps = (source.shape[0], source.shape[1]) if first else (source.shape[1], source.shape[0])
        hidden = self.values[call.writes[0]].shape[-1] // (1 + both)
        inputs, buffers = int(source.shape[-1]), list(self._inputs(call)[:1])
        state = samples * hidden * (1 + both) * 4
        zeros = self._between(call, [], layers * state)
        if first:
            buffers = [self._between(call, buffers, self._size(call.reads[0]))]
        for layer in range(layers):
            start = self._between(call, [zeros], state)
            scratch = recurrent_scratch(call.name, steps, samples, inputs, hidden, both)
            buffers = [self._between(call, [*buffers, start], steps * state, None, scratch)]
            if both:
                buffers = [self._between(call, buffers, steps * state)]
            inputs = hidden * (1 + both)
        self._buffers[call.writes[0]] = buffers[0]
        for number in call.writes[1:]:
            self._buffers[number] = buffers[0]


_RULES: dict[str, Callable[[Lowering, Call], None]] = {
    **dict.fromkeys(SHARES, Lowering._shared),
    **dict.fromkeys(_NORMS, Lowering._normalization),
    **dict.fromkeys(_TRANSPOSES, Lowering._transposition),
    **dict.fromkeys(_PRODUCTS, Lowering._product),
    "convolution": Lowering._convolution,
    "expand": Lowering._expansion,
    "slice": Lowering._slice,
    "select": Lowering._selection,
    "add": Lowering._sum,
    "add_": Lowering._sum,
    "mul": Lowering._scale,
    "div": Lowering._scale,
    "native_layer_norm": Lowering._layer_norm,
    "gelu": Lowering._gelu,
    "native_group_norm": Lowering._group_norm,
    "hardswish": Lowering._hardswish,
    "hardswish_": Lowering._hardswish,
    "mish": Lowering._mish,
    "mish_": Lowering._mish,
    "where": Lowering._chosen,
    "masked_fill": Lowering._chosen,
    "masked_fill_": Lowering._chosen,
    "softplus": Lowering._compared,
    "threshold": Lowering._compared,
    "_embedding_bag": Lowering._bag,
    "_embedding_bag_forward_only": Lowering._bag,
    "lstm": Lowering._recurrent,
    "gru": Lowering._recurrent,
}


def live(calls: Sequence[Call], results: Collection[int]) -> list[Call]:
    """Return the operations whose results are read, in order."""
    wanted, found = set(results), []
    for call in reversed(calls):
        if wanted.intersection(call.writes):
            wanted.update(call.reads)
            found.append(call)
    return found[::-1]


def convolution_scratch(args: tuple[Any, ...], out: Value) -> int:
    """Return the temporary bytes of a convolution's kernel.

    A convolution unrolls its input, the whole of it where a layer has more filters than output positions, else in pieces of 64 KiB
    (MLAS, convolve.cpp); 1×1 convolutions do not. A transposed one computes all patches before it adds them up.
    """
    source, weight, stride, padding, transposed, groups = args[0], args[1], args[3], args[4], args[6], args[8]
    window = math.prod(weight.shape[1:])
    if transposed:
        return int(math.prod(source.shape[2:]) * window * 4)
    plain = all(s == 1 for s in stride) and not any(padding)
    if plain and (all(k == 1 for k in weight.shape[2:]) or (weight.shape[1] == 1 and _whole(weight.shape[2:], source.shape[2:]))):
        return 0
    positions = math.prod(out.shape[2:])
    return int(positions * window * 4) if weight.shape[0] // groups > positions else 64 * 1024


def _whole(kernel: Sequence[int], image: Sequence[int]) -> bool:
    """Whether a kernel has its image's whole width, or its whole height and a width of one."""
    return len(kernel) == 2 and (kernel[1] == image[1] or (kernel[0] == image[0] and kernel[1] == 1))


def recurrent_scratch(name: str, steps: int, samples: int, inputs: int, hidden: int, both: bool) -> list[int]:
    """Return the bytes of the temporary buffers of an LSTM or GRU kernel (uni_directional_lstm.cc, deep_cpu_gru.cc).

    Each direction holds the gates of all steps. The backward one also has its input and output in reverse order.
    """
    state = 4 * samples * hidden
    gates = 4 if name == "lstm" else 3
    states = [state] * 3 + [4 * hidden] * 6 if name == "lstm" else [state] * 7
    forward = [*states, steps * gates * state, 4 * samples]
    backward = [*forward, 4 * steps * samples * inputs, steps * state] if both else []
    last = [state * (1 + both)] * (2 if name == "lstm" else 1)
    return [*last, *forward, *backward]


def _keeps_order(shape: Sequence[int], before: Sequence[int], call: Call) -> bool:
    """Whether a transposition moves axes of one entry only; where several axes are equally long, sizes alone do not tell."""
    long = [n for n in before if n != 1]
    return len(long) == len(set(long)) or len(long) < 2


def _by_product(call: Call, before: Sequence[int]) -> bool:
    """Whether a product's kernel can read a matrix whose axes are permuted like this: the last two, or the first and those before the last."""
    rank = len(before)
    order = _order(call, rank)
    if order is None or rank < 2:
        return False
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    batch = (*range(1, rank - 1), 0, rank - 1)
    both = (*range(1, rank - 1), rank - 1, 0)
    return order in (swapped, batch, both)


def _order(call: Call, rank: int) -> tuple[int, ...] | None:
    if call.name == "t":
        return (1, 0)
    if call.name == "permute":
        return tuple(int(axis) % rank for axis in call.args[1])
    if call.name == "transpose":
        order = list(range(rank))
        first, second = (int(axis) % rank for axis in call.args[1:3])
        order[first], order[second] = order[second], order[first]
        return tuple(order)
    return None
