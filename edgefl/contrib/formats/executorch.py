"""ExecuTorch: PyTorch's runtime for phones and boards. Convolutions and matrix products run in XNNPACK, the rest in portable kernels."""

from importlib.metadata import version

import torch
from torch import Tensor, nn

from edgefl.bundle.formats.contract import Array, Converted
from edgefl.registry import export_format


@export_format("executorch", needs="executorch", extra="edgefl-sim[executorch]", suffix=".pte")
def executorch(network: nn.Module, sample: tuple[Tensor, ...]) -> Converted:
    """Return the network as an ExecuTorch program with the method ``forward``."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    program = torch.export.export(network, sample)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    content = bytes(lowered.to_executorch().buffer)
    loaded = Runtime.get().load_program(content)
    method = loaded.load_method("forward")

    def run(inputs: tuple[Array, ...]) -> Array:
        return method.execute([torch.from_numpy(x) for x in inputs])[0].numpy()

    return Converted(content, run, f"executorch {version('executorch')}")
