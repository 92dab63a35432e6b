"""Networks with several inputs, or with logits in a dictionary, as bundles need them: from one tensor ``x`` to logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgefl.errors import InputError
from edgefl.rng import generator, torch_seeded

if TYPE_CHECKING:
    from torch import Tensor, nn


def with_one_input(network: nn.Module, samples: Tensor | Mapping[str, Tensor]) -> Tensor:
    """Change ``network`` so that it takes one tensor and returns its logits, and return ``samples`` as that tensor (samples, …).

    Several inputs, name → tensor, are stacked: (samples, inputs, …). Logits may be the only floating-point tensor of an output, or its
    entry ``logits``.

    InputError: the inputs differ in shape or type.

    >>> import torch
    >>> class Masked(torch.nn.Module):
    ...     def forward(self, ids, mask):
    ...         return {"logits": ids * mask.float()}
    >>> network = Masked()
    >>> x = with_one_input(network, {"ids": torch.ones(2, 3, dtype=torch.int64), "mask": torch.zeros(2, 3, dtype=torch.int64)})
    >>> x.shape, network(x).shape
    (torch.Size([2, 2, 3]), torch.Size([2, 3]))
    """
    import torch

    from edgefl.models.outputs import logits_of

    network.register_forward_hook(lambda module, args, output: logits_of(output), prepend=True)
    if isinstance(samples, torch.Tensor):
        return samples
    names = list(samples)
    if len({(tensor.shape, tensor.dtype) for tensor in samples.values()}) != 1:
        found = ", ".join(f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in samples.items())
        raise InputError(f"a bundle has one input, in which inputs of one shape and type are stacked; got {found}")

    def apart(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), dict(zip(names, args[0].unbind(1), strict=True))

    network.register_forward_pre_hook(apart, prepend=True, with_kwargs=True)
    return torch.stack(list(samples.values()), 1)


def ids_below(samples: Tensor, stacked: bool) -> Any:
    """Return a limit of the ids in ``samples``: their largest plus 1, for each of ``stacked`` inputs (inputs, 1, …); 0 for real numbers."""
    if samples.is_floating_point():
        return 0
    if not stacked:
        return int(samples.max()) + 1
    return samples.amax((0, *range(2, samples.dim())), keepdim=True)[0].numpy() + 1


def examples_for(network: nn.Module, samples: Tensor | Mapping[str, Tensor]) -> Tensor | dict[str, Tensor]:
    """Return samples like ``samples`` with random values: normal ones, or ids of the embedding that reads them, else 0 and 1."""
    import torch

    named: Any = {"": samples} if isinstance(samples, torch.Tensor) else samples
    rows: dict[str, int] = {}
    with torch.no_grad(), _tables({tensor.untyped_storage().data_ptr(): name for name, tensor in named.items()}, rows):
        network.eval()(samples)
    found = {}
    with torch_seeded(generator(0, "samples")):
        for name, tensor in named.items():
            found[name] = torch.randn(tensor.shape)
            if not tensor.is_floating_point():
                found[name] = torch.randint(rows.get(name, 2), tensor.shape)
                if name not in rows and tensor.dim() > 1:
                    found[name][..., 0] = 1  # no sample is empty
    return found[""] if list(found) == [""] else found


def _tables(inputs: Mapping[int, str], rows: dict[str, int]) -> Any:
    """Return a context that notes in ``rows`` how many rows the embedding has that reads an input, by the address of its values."""
    import torch
    import torch.nn.functional as F
    from torch.overrides import TorchFunctionMode

    class Tables(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (F.embedding, F.embedding_bag, torch.embedding) and isinstance(args[0], torch.Tensor):
                ids, table = (args[1], args[0]) if func is torch.embedding else args[:2]
                if (name := inputs.get(ids.untyped_storage().data_ptr())) is not None:
                    rows[name] = min(len(table), rows.get(name, len(table)))
            return func(*args, **(kwargs or {}))

    return Tables()
