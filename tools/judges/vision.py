"""torchvision's table of networks: parameters and MACs as its weights' own metadata state them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch

import edgefl
from edgefl.report.cost_rows import ProfileRow
from judges.verdict import EQUAL, Case, Judge, Verdict

with patch.object(torch.library, "register_fake", lambda *_, **__: lambda function: function):
    # Its compiled operators, which no network here uses, are missing if its wheel is of another build of torch.
    from torchvision import models

NAMES = (
    "alexnet", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x1_0", "mnasnet0_5", "resnet18", "resnet50",
    "efficientnet_b0", "googlenet", "inception_v3", "regnet_y_400mf", "densenet121", "convnext_tiny", "resnext50_32x4d", "vgg11",
    "vit_b_16", "swin_t", "swin_v2_t", "maxvit_t",
)  # fmt: skip
TWO_HEADS = ("googlenet", "inception_v3")
"""Networks with auxiliary heads, which train only: their tables count the heads' parameters where their weights have them."""
PRINTED_GIGA = 0.001
"""A table's unit in the last place: 10⁹ MACs with three digits after the point."""


def _weights(name: str) -> Any:
    return models.get_model_weights(name).DEFAULT


@cache
def _row(name: str, heads: bool) -> ProfileRow:
    options = {"aux_logits": heads, "init_weights": False} if name in TWO_HEADS else {}
    side = _weights(name).transforms().crop_size[0]
    network = models.get_model(name, weights=None, **options)
    row: ProfileRow = edgefl.profile(network.eval(), (3, side, side), batch_size=2)[0]
    return row


def _params(name: str) -> Verdict:
    published = _weights(name).meta["num_params"]
    found = sum(p.numel() for p in _built(name).parameters()) if name in TWO_HEADS else _row(name, False).params
    return EQUAL if found == published else Verdict("wrong", f"parameters: {found:,}, published {published:,}")


def _built(name: str) -> Any:
    return models.get_model(name, weights=None, init_weights=False)


def _macs(name: str) -> Verdict:
    published, found = _weights(name).meta["_ops"], _row(name, False).macs_forward / 1e9
    same = abs(found - published) <= PRINTED_GIGA
    return EQUAL if same else Verdict("wrong", f"{found:.3f} thousand million MACs, published {published:.3f}")


def cases(subject: str) -> Iterator[Case]:
    """Return the cases of a network."""
    yield Case("parameters", partial(_params, subject))
    yield Case("MACs", partial(_macs, subject))


JUDGE = Judge("torchvision's table", "", ("torchvision", "torch"), lambda: list(NAMES), cases, every=7)
