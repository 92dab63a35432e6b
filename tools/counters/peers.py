"""Other counters of multiply-accumulates: one function per peer, and what each leaves out or adds.

Add a peer as one function and one ``Peer`` of ``PEERS``. The function takes a network that it may change, and a batch.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn, no_grad
from torch.utils.flop_counter import FlopCounterMode

from edgefl.onnxgrad.contexts import quiet

Figure = int | str
"""MACs of one sample, or why there are none."""


@dataclass(frozen=True)
class Peer:
    """Another counter: its package, how it is asked for MACs of a batch, and what it leaves out or adds."""

    name: str
    package: str
    count: Callable[[nn.Module, Tensor], float]
    misses: str

    @property
    def installed(self) -> bool:
        """Whether the package is there."""
        return importlib.util.find_spec(self.package) is not None

    def measure(self, module: nn.Module, x: Tensor) -> Figure:
        """Return MACs per sample, or why there are none."""
        if not self.installed:
            return "not installed"
        try:
            with quiet():
                return round(self.count(copy.deepcopy(module).eval(), x) / len(x))
        except Exception:  # noqa: BLE001 - another package may raise anything
            return "error"


def _torch_forward(module: nn.Module, x: Tensor) -> float:
    with FlopCounterMode(display=False) as counter, no_grad():
        module(x)
    return counter.get_total_flops() / 2


def _torch_both(module: nn.Module, x: Tensor) -> float:
    with FlopCounterMode(display=False) as counter:
        module.train()(x).sum().backward()
    return counter.get_total_flops() / 2


def _fvcore(module: nn.Module, x: Tensor) -> float:
    from fvcore.nn import FlopCountAnalysis

    return float(FlopCountAnalysis(module, x).total())


def _thop(module: nn.Module, x: Tensor) -> float:
    from thop import profile

    return float(profile(module, inputs=(x,), verbose=False)[0])


def _torchinfo(module: nn.Module, x: Tensor) -> float:
    from torchinfo import summary

    return float(summary(module, input_data=x, verbose=0).total_mult_adds)


def _ptflops(backend: str, module: nn.Module, x: Tensor) -> float:
    from ptflops import get_model_complexity_info

    options = {"as_strings": False, "print_per_layer_stat": False, "verbose": False, "backend": backend}
    return float(get_model_complexity_info(module, tuple(x.shape[1:]), input_constructor=lambda _: x, **options)[0])


TORCH = Peer(
    "torch",
    "torch",
    _torch_forward,
    "has no rule for the CPU kernels of attention and LSTMs. It counts the weight gradient of a grouped convolution as a dense one.",
)
TORCH_BOTH = replace(TORCH, count=_torch_both)
PEERS = (
    TORCH,
    Peer(
        "fvcore",
        "fvcore",
        _fvcore,
        "skips attention's products and LSTMs. It counts only one matrix of a batch of products, and adds normalisation and pooling.",
    ),
    Peer(
        "thop",
        "thop",
        _thop,
        "counts known modules only, so no attention products and no functional calls. It overcounts transposed convolutions, "
        "and adds batch normalisation, pooling and an LSTM's gates.",
    ),
    Peer(
        "torchinfo",
        "torchinfo",
        _torchinfo,
        "multiplies parameters: a linear layer counts once for any number of tokens. It overcounts transposed convolutions, "
        "skips attention and functional calls, and adds biases and normalisation.",
    ),
    Peer(
        "ptflops",
        "ptflops",
        partial(_ptflops, "pytorch"),
        "skips functional convolutions, the operator `@` and the projections of timm's attention. "
        "It adds biases, activations, normalisation and softmax.",
    ),
    Peer(
        "ptflops aten",
        "ptflops",
        partial(_ptflops, "aten"),
        "skips attention's products and LSTMs, and adds biases.",
    ),
)
