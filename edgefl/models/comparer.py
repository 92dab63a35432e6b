"""Compares the operations of a narrow network with the plan that was made of the wide one."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from edgefl.models.axis_rules import CONSTANTS
from edgefl.models.channels import TracedCall, packed, seen
from edgefl.util.tensors import tensors_in

_AHEAD = 16  # how many operations ahead the next one of a layer and name is searched for


class LastCall(TorchFunctionMode):
    """Remembers the sizes that the network's last call of a function named, such as those of ``reshape``, which checks them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rest = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
        of_one_output = "split" not in getattr(function, "__name__", "")
        self.sizes = list(rest) if of_one_output and all(type(value) is int for value in rest) else []
        return function(*args, **(kwargs or {}))


class DiffersError(Exception):
    """The narrow network does something else than planned at this call; ``sizes`` are those that it wants or has, none if unknown."""

    def __init__(self, number: int, sizes: Sequence[int]) -> None:
        super().__init__(number)
        self.number, self.sizes = number, sizes


class Comparer(TorchDispatchMode):
    """Compares a narrow network's operations with the plan, ``calls``; ``layer()`` returns the module that runs at the moment."""

    def __init__(self, calls: Sequence[TracedCall], width: float, layer: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.calls, self.width, self.layer, self.number = calls, width, layer, 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def run() -> Any:
            return packed(operation, args, kwargs)

        return self.checked(name, args, run) if (name := seen(operation)) else run()

    def checked(self, name: str, args: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        """Return the result of ``run``, the operation ``name``; DiffersError if its sizes are not as planned."""
        coming, place = self.calls[self.number : self.number + _AHEAD], (self.layer(), name)
        if not coming or (coming[0].layer, coming[0].name) != place:
            # The same product may be one operation or two, depending on its sizes: einsum multiplies where a sum has one term.
            out = run()
            shapes = [list(tensor.shape) for tensor in tensors_in(out)]
            alike = (i for i, call in enumerate(coming, 1) if (call.layer, call.name) == place and self._planned(call) == shapes)
            self.number += next(alike, 0)
            return out
        number, call = self.number, coming[0]
        planned = self._planned(call)
        asked = args[1] if name in ("view", "expand") and len(args[1]) == len(planned[0]) else planned[0] if planned else ()
        if any(size not in (-1, wanted) for size, wanted in zip(asked, *planned[:1], strict=True)):
            raise DiffersError(number, asked)
        out = run()
        for tensor, sizes in zip(tensors_in(out), planned, strict=True):
            if list(tensor.shape) != sizes and name not in CONSTANTS:  # of a constant, what it is used with tells whether it fits
                raise DiffersError(number, list(tensor.shape))
        self.number = number + 1
        return out

    def _planned(self, call: TracedCall) -> list[list[int]]:
        return [[axis.count(self.width) for axis in axes] for axes in call.outputs]
