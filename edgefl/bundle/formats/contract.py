"""The contract of an export format, which writes a tier's inference for another runtime than onnxruntime.

A format is a file of this package with a decorated function. ``needs`` names the Python package that it imports, ``extra`` what to install
for it, and ``suffix`` the end of the file's name::

    @export_format("mine", needs="my_runtime", extra="my-runtime", suffix=".bin")
    def mine(network: nn.Module, sample: tuple[Tensor, ...]) -> Converted:
        content = my_runtime.convert(network, sample)
        return Converted(content, my_runtime.load(content).run, f"my_runtime {my_runtime.__version__}")

The caller silences what a converter prints, and compares the file with torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Converted:
    """A network as a file of another runtime.

    Attributes:
        content: the file.
        run: one sample's inputs, each (1, …), in the order of the network's arguments → logits (1, classes), computed by the runtime.
        made_with: name and version of the converter.
    """

    content: bytes
    run: Callable[[tuple[Array, ...]], Array]
    made_with: str
