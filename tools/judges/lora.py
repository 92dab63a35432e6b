"""PEFT's LoRA: the same adapters give the same output, the same merged weights and the same number of parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from edgefl.factor.adapter import attach, merged
from edgefl.rng import generator, torch_seeded
from judges.verdict import EQUAL, Case, Judge, Verdict

SETTINGS = ((1, 2), (4, 8), (8, 4), (16, 32))
"""Rank, and PEFT's alpha."""
ADAPTED = ("a", "b")


class Network(nn.Module):
    """Three linear layers, of which two get adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 20), nn.Linear(20, 16, bias=False), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> Any:
        """Return the output."""
        return self.c(torch.relu(self.b(torch.tanh(self.a(x)))))


def _pair(rank: int, alpha: int) -> tuple[nn.Module, Any]:
    """Return a network with edgefl's adapters, and with PEFT's, of the same values."""
    own = Network()
    settings = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(ADAPTED), lora_dropout=0.0, bias="none")
    other: Any = get_peft_model(copy.deepcopy(own), settings)
    for name in ADAPTED:
        layer: Any = own.get_submodule(name)
        attach(layer, rank, alpha / rank)
        theirs = other.base_model.model.get_submodule(name)
        with torch.no_grad():
            for ours, value in ((layer.adapter.u, theirs.lora_A["default"]), (layer.adapter.v, theirs.lora_B["default"])):
                ours.weight.normal_()
                value.weight.copy_(ours.weight)
    return own, other


def _judged(kind: str, rank: int, alpha: int) -> Verdict:
    with torch_seeded(generator(0, "lora", rank)):
        own, other = _pair(rank, alpha)
        x = torch.randn(7, 12)
    if kind == "output":
        off = float((own(x) - other(x)).abs().max())
    elif kind == "parameters":
        ours = sum(value.numel() for name, value in own.named_parameters() if "adapter" in name)
        off = ours - sum(value.numel() for value in other.parameters() if value.requires_grad)
    else:
        whole, theirs = merged(own), other.merge_and_unload()
        off = max(float((whole.get_submodule(n).weight - theirs.get_submodule(n).weight).abs().max()) for n in "abc")
    return EQUAL if off <= 1e-5 else Verdict("wrong", f"{kind}: differs by {off:.2g}")


def cases(subject: str) -> Iterator[Case]:
    """Return the cases of a rank."""
    rank, alpha = next(setting for setting in SETTINGS if subject == f"rank {setting[0]}")
    for kind in ("output", "merged weights", "parameters"):
        yield Case(kind, partial(_judged, kind, rank, alpha))


JUDGE = Judge(
    "PEFT's LoRA",
    "Adapters of edgefl and of `peft` with the same values: outputs, merged weights and the number of trained parameters.",
    ("peft", "torch"),
    lambda: [f"rank {rank}" for rank, _ in SETTINGS],
    cases,
    every=2,
)
