"""The causes of a trained model's bits besides the run: the software of a computer, its processor, and how kernels are chosen."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import Self

from edgefl.util.machine import processor_name
from edgefl.util.shelf import own_code_sha256
from edgefl.version import __version__
from edgefl.wire.message import MessageFields

PINS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Variables of the environment that limit the vector instructions of torch and its libraries."""


@dataclass(frozen=True)
class Fingerprint:
    """Facts about a process. Processes for which all are equal train a model to the same bits.

    Attributes:
        edgefl: the release and a hash of its source files.
        torch, numpy, onnxruntime: their releases.
        processor: its name.
        instructions: the vector instructions that torch uses.
        pins: the variables of :data:`PINS` that are set.
    """

    edgefl: str
    torch: str
    numpy: str
    onnxruntime: str
    processor: str
    instructions: str
    pins: str

    @classmethod
    def own(cls) -> Self:
        """Return the fingerprint of this process."""
        import torch

        pins = ", ".join(f"{name}={os.environ[name]}" for name in PINS if name in os.environ) or "none"
        kinds = torch.backends.cpu.get_cpu_capability()
        versions = torch.__version__, version("numpy"), version("onnxruntime")
        return cls(f"{__version__} ({own_code_sha256()[:12]})", *versions, processor_name(), kinds, pins)

    @classmethod
    def of(cls, facts: MessageFields) -> Self:
        """Return the fingerprint in ``facts`` of another process; a fact that its release does not send is "unknown"."""
        return cls(**{field.name: str(facts.get(field.name, "unknown")) for field in fields(cls)})

    def differences(self, here: Self) -> Iterator[str]:
        """Yield each fact that differs from ``here``, as text.

        >>> one = Fingerprint("1", "2.13.0", "2.4.6", "1.30", "A", "AVX2", "none")
        >>> list(one.differences(Fingerprint("1", "2.13.0", "2.4.6", "1.30", "A", "AVX512", "none")))
        ['instructions AVX2 there, AVX512 here']
        """
        for field in fields(self):
            there, own = getattr(self, field.name), getattr(here, field.name)
            if there != own:
                yield f"{field.name} {there} there, {own} here"
