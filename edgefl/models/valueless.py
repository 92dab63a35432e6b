"""Runs of a user's network without values, and what their errors say."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from edgefl.onnxgrad.errors import place_of


def has_values() -> bool:
    """Whether tensors that are made now have values: not on the device ``meta``, and not in a fake mode."""
    return detect_fake_mode() is None and torch.get_default_device().type != "meta"


@contextlib.contextmanager
def on_meta() -> Iterator[None]:
    """Create tensors on the device ``meta``, and let networks name it to ``torch.autocast``, which does not know it.

    Torch's fused kernels of transformers have no form there: they are off.

    >>> with on_meta(), torch.autocast(torch.ones(1).device.type, enabled=False):
    ...     pass
    """
    begin = torch.autocast.__init__

    def begun(self: Any, device_type: str, *options: Any, **more: Any) -> None:
        begin(self, "cpu" if device_type == "meta" else device_type, *options, **more)

    torch.autocast.__init__ = begun  # type: ignore[method-assign]  # networks import the class under several names
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.autocast.__init__ = begin  # type: ignore[method-assign]
        torch.backends.mha.set_fastpath_enabled(fused)


def read_elsewhere(network: nn.Module, layers: Mapping[str, nn.Module], run: Callable[[nn.Module], Any]) -> list[str]:
    """Return which of the ``layers`` have a weight that ``run(network)`` reads outside of the layer's own forward pass.

    >>> layers = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    >>> read_elsewhere(layers, dict(layers.items()), lambda pair: pair["a"](pair["b"].weight))
    ['b']
    """
    owners = {id(layer.weight): name for name, layer in layers.items()}
    inside: list[str] = []
    elsewhere: dict[str, None] = {}

    class Reads(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names = (owners.get(id(value)) for value in tree_leaves((args, kwargs)))
            elsewhere.update({name: None for name in names if name is not None and name not in inside})
            return func(*args, **(kwargs or {}))

    def enter(name: str, module: nn.Module, inputs: Any) -> None:
        inside.append(name)

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        inside.pop()

    handles = [layer.register_forward_pre_hook(partial(enter, name)) for name, layer in layers.items()]
    handles += [layer.register_forward_hook(leave) for layer in layers.values()]
    with torch.no_grad(), Reads():
        run(network)
    for handle in handles:
        handle.remove()
    return list(elsewhere)


def reason(error: BaseException) -> str:
    """Return what a failed run says of itself, and where: the innermost frame outside torch and this package.

    >>> reason(ValueError("no")).startswith("ValueError: no")
    True
    """
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        said = f"{error.func} depends on the values of its input, and costs come from shapes alone; leave it out, "
        said += "or switch off the option that asks for it (transformers: pad_token_id=None, attn_implementation='eager')"
    elif "on meta tensors" in str(error):
        said = "it depends on the values of its input, and shapes alone are traced"
    elif "support saved tensor hooks" in str(error):
        said = "samples with gradients of their own cannot have gradient checkpointing (torch.utils.checkpoint); leave it out"
    elif "SparseTensorImpl" in str(error):
        said = "gradients of nn.Embedding with sparse=True are not supported; give sparse=False"
    else:
        said = (str(error).strip().splitlines() or ["no message"])[0]
        said = said if isinstance(error, RuntimeError) else f"{type(error).__name__}: {said}"
    return said + place_of(error)
