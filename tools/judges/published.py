"""Sizes that others published: HeteroFL's networks at five widths, and the parameters and MACs of MLPerf Tiny's four networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from torch import nn

import edgefl
from edgefl.report.cost_rows import ProfileRow
from judges import published_networks as networks
from judges.verdict import EQUAL, Case, Judge, Verdict

WIDTHS = (1, 0.5, 0.25, 0.125, 0.0625)


@dataclass(frozen=True)
class Sizes:
    """A network at HeteroFL's widths.

    Attributes:
        build: makes the network.
        shape: of a sample.
        params: the parameters that are printed for each width.
        digits: significant digits that are printed; 0 for all.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    params: tuple[int, ...]
    digits: tuple[int, ...] = (0,) * len(WIDTHS)


HETEROFL = {
    "HeteroFL's ResNet, by its paper": Sizes(
        networks.heterofl_resnet, (3, 32, 32), (9_600_000, 2_400_000, 604_000, 152_000, 38_000), (2, 2, 3, 3, 2)
    ),
    "HeteroFL's ResNet-18, by Flower's baseline": Sizes(
        networks.heterofl_resnet18, (3, 32, 32), (11_172_170, 2_796_714, 701_018, 176_178, 44_510)
    ),
    "HeteroFL's CNN, by Flower's baseline": Sizes(
        networks.heterofl_cnn, (1, 28, 28), (1_556_874, 391_370, 98_922, 25_274, 6_594)
    ),
}
"""Diao et al., ICLR 2021, and the tables of ``baselines/heterofl`` of Flower. Their FLOPs count other operations too."""


@dataclass(frozen=True)
class Tiny:
    """A network of MLPerf Tiny.

    Attributes:
        build: makes the network.
        shape: of a sample.
        params: as Keras prints them, with the running statistics of BatchNorm.
        macs: of an inference of one sample.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    params: int
    macs: int


TINY = {
    "MLPerf Tiny's ResNet8": Tiny(networks.resnet8, (3, 32, 32), 78_666, 12_501_632),
    "MLPerf Tiny's DS-CNN": Tiny(networks.ds_cnn, (1, 49, 10), 24_908, 2_656_768),
    "MLPerf Tiny's MobileNetV1": Tiny(networks.mobilenet, (3, 96, 96), 221_794, 7_489_664),
    "MLPerf Tiny's autoencoder": Tiny(networks.autoencoder, (640,), 269_992, 264_192),
}
"""Banbury et al., NeurIPS 2021 (Datasets and Benchmarks); parameters by the reference code in Keras."""


def _at(subject: str, width: float) -> ProfileRow:
    sizes = HETEROFL[subject]
    row: ProfileRow = edgefl.profile(sizes.build, sizes.shape, method="heterofl", tiers=(width,))[0]
    return row


@cache
def _tiny(subject: str) -> ProfileRow:
    row: ProfileRow = edgefl.profile(TINY[subject].build, TINY[subject].shape)[0]
    return row


def rounded(value: int, digits: int) -> int:
    """Return ``value`` with so many significant digits; 0: all.

    >>> rounded(9_622_090, 2), rounded(603_802, 3), rounded(6594, 0)
    (9600000, 604000, 6594)
    """
    return round(value, digits - len(str(value))) if digits else value


def _is(found: int, published: int, unit: str, digits: int = 0) -> Verdict:
    return EQUAL if rounded(found, digits) == published else Verdict("wrong", f"{unit}: {found:,}, published {published:,}")


def _params_at(subject: str, number: int) -> Verdict:
    sizes = HETEROFL[subject]
    return _is(_at(subject, WIDTHS[number]).params, sizes.params[number], "parameters", sizes.digits[number])


def _params(subject: str) -> Verdict:
    statistics = sum(b.numel() for b in TINY[subject].build().buffers() if b.is_floating_point())
    return _is(_tiny(subject).params + statistics, TINY[subject].params, "parameters")


def _macs(subject: str) -> Verdict:
    return _is(_tiny(subject).macs_forward, TINY[subject].macs, "MACs")


def cases(subject: str) -> Iterator[Case]:
    """Return the cases of a network."""
    if subject in HETEROFL:
        for number, width in enumerate(WIDTHS):
            yield Case(f"parameters at width {width:g}", partial(_params_at, subject, number))
    else:
        yield Case("parameters", partial(_params, subject))
        yield Case("MACs", partial(_macs, subject))


JUDGE = Judge(
    "Published sizes",
    "Parameters of HeteroFL's networks at its five widths, exactly or as far as they are printed, and parameters and MACs of "
    "the four networks of MLPerf Tiny, with the running statistics that Keras counts as parameters.",
    ("torch",),
    lambda: [*HETEROFL, *TINY],
    cases,
    every=3,
)
