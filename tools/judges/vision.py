"""torchvision's table of networks: parameters and MACs as its weights' own metadata state them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import edgefl
from edgefl.report.cost_rows import ProfileRow
from judges.counts import torch_macs
from judges.verdict import EQUAL, Case, Judge, Verdict

with patch.object(torch.library, "register_fake", lambda *_, **__: lambda function: function):
    # Its compiled operators, which no network here uses, are missing if its wheel is of another build of torch.
    from torchvision import models

NAMES = (
    "alexnet", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x1_0", "mnasnet0_5", "resnet18", "resnet50",
    "efficientnet_b0", "googlenet", "inception_v3", "regnet_y_400mf", "densenet121", "convnext_tiny", "resnext50_32x4d", "vgg11",
    "vit_b_16", "swin_t", "swin_v2_t", "maxvit_t",
)  # fmt: skip
WITH_HEADS = ("inception_v3",)
"""Networks whose table counts the parameters of the auxiliary heads, which only train; googlenet's does not."""
UNIT = 0.001
"""A table's unit in the last place: 10⁹ MACs with three digits after the point."""


def _weights(name: str) -> Any:
    return models.get_model_weights(name).DEFAULT


def _side(name: str) -> int:
    side: int = _weights(name).transforms().crop_size[0]
    return side


@cache
def _network(name: str) -> nn.Module:
    options = {"aux_logits": name in WITH_HEADS, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    network: nn.Module = models.get_model(name, weights=None, **options).eval()
    return network


@cache
def _row(name: str) -> ProfileRow:
    row: ProfileRow = edgefl.profile(_network(name), (3, _side(name), _side(name)), batch_size=2)[0]
    return row


def _params(name: str) -> Verdict:
    published, found = _weights(name).meta["num_params"], _row(name).params
    return EQUAL if found == published else Verdict("wrong", f"parameters: {found:,}, published {published:,}")


def _macs(name: str) -> Verdict:
    """Compare the MACs of an inference of one image. The table has products of weights only too, which edgefl counts per pass."""
    published, found = _weights(name).meta["_ops"], _row(name).macs_inference
    if _row(name).macs_compose:
        one, two = (torch_macs(_network(name), [torch.zeros(count, 3, _side(name), _side(name))]) for count in (1, 2))
        found += 2 * one - two
    same = abs(found / 1e9 - published) <= UNIT
    return EQUAL if same else Verdict("wrong", f"MACs: {found:,}, published {published:.3f} · 10⁹")


def cases(subject: str) -> Iterator[Case]:
    """Return the cases of a network."""
    yield Case("parameters", partial(_params, subject))
    yield Case("MACs", partial(_macs, subject))


JUDGE = Judge(
    "torchvision's table",
    "Parameters and MACs of twenty networks as the metadata of torchvision's weights state them.",
    ("torchvision", "torch"),
    lambda: list(NAMES),
    cases,
    every=9,
)
