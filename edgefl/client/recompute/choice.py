"""Where segments of recomputation begin: the layers with which a training step holds the least memory."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from edgefl.client.recompute.tape import Tape, taped
from edgefl.cost.trace import Subject, Tracer
from edgefl.records import Batch


def segments_of(subject: Subject, batch_size: int) -> tuple[str, ...]:
    """Return the layers of ``subject`` before which to begin segments such that a step of ``batch_size`` samples holds the least.

    Layers with a matrix of weights are candidates. One trace of a step finds which bytes autograd saves between two of them, and which
    cross them. What a step holds at once is estimated as the bytes that cross the boundaries so far, those that one segment saves, and
    the gradients of later layers. Empty if saving everything holds the least.
    """
    tapes: list[Tape] = []

    def measured(module: nn.Module, batch: Batch) -> Tensor:
        names = [
            name for name, part in module.named_modules() if name and any(p.dim() > 1 for p in part.parameters(recurse=False))
        ]
        tapes.append(Tape(names))
        return taped(subject.loss, module, batch, tapes[0])

    Tracer(replace(subject, loss=measured)).operations(batch_size)
    return _least(tapes[0].began, *tapes[0].sizes())


def _least(layers: Sequence[str], saved: Sequence[int], crossing: Sequence[int], later: Sequence[int]) -> tuple[str, ...]:
    """Return the layers to begin segments before, for the least bytes at once; the last of them as early as that allows.

    Args:
        layers: n candidates in order; block i lies before candidate i, and block n after the last.
        saved: bytes that autograd saves of each block (n + 1).
        crossing: bytes that segments after each candidate read from before it (n).
        later: bytes of the gradients that exist once all after a candidate is differentiated (n).

    >>> _least(["a", "b", "c"], [8, 8, 8, 1], [1, 1, 1], [0, 0, 0])
    ('a', 'b')
    >>> _least(["a", "b"], [1, 1, 9], [4, 4], [0, 0])
    ()
    """
    sums = [0]
    for size in saved:
        sums.append(sums[-1] + size)
    limits = [sums[-1], 0]  # what fits, and what does not
    best: tuple[str, ...] = ()
    while limits[0] - limits[1] > max(1, sums[-1] >> 12):
        middle = (limits[0] + limits[1]) // 2
        places = _within(middle, sums, crossing, later)
        if places is None:
            limits[1] = middle
        else:
            limits[0], best = middle, tuple(layers[place] for place in places)
    return best


def _within(limit: int, sums: Sequence[int], crossing: Sequence[int], later: Sequence[int]) -> list[int] | None:
    """Return candidates with segments that hold at most ``limit`` bytes at once, None if there are none."""
    saved: list[float] = []
    previous: list[int] = []
    for end, over in enumerate(crossing):
        # −1 stands for the beginning of the network; what crosses a boundary stays until all before it is differentiated.
        starts = [(saved[start] if start >= 0 else 0.0, start) for start in range(-1, end)]
        fitting = [
            (before, start) for before, start in starts if before + over + sums[end + 1] - sums[start + 1] + later[end] <= limit
        ]
        before, start = min(fitting, default=(math.inf, -1))
        saved.append(before + over)
        previous.append(start)
        if saved[end] + sums[-1] - sums[end + 1] <= limit:
            chosen = [end]
            while (start := previous[chosen[-1]]) >= 0:
                chosen.append(start)
            return chosen[::-1]
    return None
