"""Kernels and pooling windows that slide over maps: sizes, pads and the places they stop at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgefl.onnxgrad.gradients.tape import Op, Tape

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """A window that slides over a map; every field has one entry for each of the map's axes.

    Attributes:
        sizes: of the map.
        kernel: entries that the window takes at once.
        strides: steps from one place to the next.
        dilations: steps from one entry to the next.
        begins: entries of padding in front of the map.
        places: where the window stops: the sizes of what it computes.
    """

    sizes: Sizes
    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    begins: Sizes
    places: Sizes

    @property
    def ends(self) -> Sizes:
        """Entries of padding behind the map that the last place reaches; negative where it leaves that many of the map untouched.

        >>> Window((6,), (3,), (2,), (1,), (0,), (2,)).ends
        (-1,)
        """
        reach = zip(self.places, self.strides, self.kernel, self.dilations, self.sizes, self.begins, strict=True)
        return tuple((n - 1) * step + (k - 1) * d + 1 - size - begin for n, step, k, d, size, begin in reach)

    @property
    def pads(self) -> Sizes:
        """The attribute: begins, then ends, none negative."""
        return (*self.begins, *(max(end, 0) for end in self.ends))

    @property
    def rank(self) -> int:
        """How many axes the map has, beside those of the batch and the channels."""
        return len(self.kernel)

    @property
    def axes(self) -> range:
        """The map's axes within (batch, channels, …)."""
        return range(2, 2 + self.rank)

    @property
    def unit_strides(self) -> bool:
        """Whether the window stops everywhere."""
        return all(step == 1 for step in self.strides)

    @property
    def apart(self) -> bool:
        """Whether no two places share an entry."""
        return all(step >= (k - 1) * d + 1 for step, k, d in zip(self.strides, self.kernel, self.dilations, strict=True))

    def cropped(self, tape: Tape, x: str) -> tuple[Window, str]:
        """Return the window over, and the name of, the part of the map ``x`` that it reaches; one entry wide, it skips the rest too."""
        single = all(k == 1 for k in self.kernel) and not any(self.pads) and not self.unit_strides
        if all(end >= 0 for end in self.ends) and not single:
            return self, x
        stops = tuple(size + min(end, 0) for size, end in zip(self.sizes, self.ends, strict=True))
        steps = self.strides if single else (1,) * self.rank
        zeros = tape.integers(*[0] * self.rank)
        part = tape.op("Slice", x, zeros, tape.integers(*stops), tape.integers(*self.axes), tape.integers(*steps))
        if single:
            return replace(self, sizes=self.places, strides=(1,) * self.rank), part
        return replace(self, sizes=stops), part


def window_of(tape: Tape, op: Op, x: str, y: str, kernel: Sequence[int], *, transposed: bool = False) -> Window:
    """Return the window by which a node computes ``y`` of ``x``, whatever way its padding is written.

    With ``transposed`` the node is a transposed convolution from ``y`` to ``x``.
    """
    rank, axes = len(kernel), range(2, 2 + len(kernel))
    sizes, places = tape.fixed(op, x, axes), tape.fixed(op, y, axes)
    ones = (1,) * rank
    strides, dilations = tuple(op.get("strides", ones)), tuple(op.get("dilations", ones))
    begins, mode = tuple(op.get("pads", (0,) * 2 * rank))[:rank], op.get("auto_pad", "NOTSET")
    window = Window(sizes, tuple(kernel), strides, dilations, (0,) * rank, places)
    if mode == "VALID":
        return window
    if mode in ("SAME_UPPER", "SAME_LOWER") or (transposed and "output_shape" in op.attributes):
        extra = op.get("output_padding", (0,) * rank) if transposed else (0,) * rank
        total = [max(end + more, 0) for end, more in zip(window.ends, extra, strict=True)]
        lower = mode == "SAME_LOWER" or (transposed and mode == "NOTSET")
        begins = tuple(pad - pad // 2 if lower else pad // 2 for pad in total)
    return replace(window, begins=begins)


def spread(tape: Tape, window: Window, places: str, weights: str, groups: int | None = None) -> str:
    """Return the map to which every place adds ``weights`` times its value, by a transposed convolution."""
    sizes: dict[str, Any] = {name: list(getattr(window, name)) for name in ("strides", "dilations", "pads")}
    left_out = [max(-end, 0) for end in window.ends]
    behind = left_out if any(left_out) else None
    return str(tape.op("ConvTranspose", places, weights, **sizes, group=groups, output_padding=behind))
