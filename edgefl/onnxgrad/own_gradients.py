"""Gradients that Python code computes in the backward pass, which no graph contains: autograd Functions and hooks.

A graph differentiates the forward pass. :class:`Judged` refuses code that returns other gradients than that, while torch computes a step.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from edgefl.onnxgrad.errors import EdgeflError

_SCALES = (1.0, 20.0, 1e-3, 0.0)
"""The inputs of a Function are multiplied by these numbers, to reach bounds and ties that an example does not reach."""
_GRADIENTS = (1.0, 1e6)
"""And the gradients of its results by these, to reach the bounds of gradients that are clipped."""
_TOLERANCE = 1e-3
_FUNCTION = vars(Function)["apply"]
_DERIVATIVES: WeakKeyDictionary[type[Function], set[str]] = WeakKeyDictionary()
"""Functions → the kinds of arguments with which their backward pass is known to be the derivative: a network calls them in each pass."""


class Judged(TorchFunctionMode):
    """Within this context, code that changes gradients raises an EdgeflError, which names it: Functions, and hooks that return something.

    Only the hooks of the modules in ``network`` are judged, and hooks that a forward pass registers.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._network, self._stack = network, contextlib.ExitStack()

    def __enter__(self) -> "Judged":
        """Begin to judge."""
        self._stack.enter_context(_functions_judged())
        for name, part in self._network.named_modules():
            for kind in ("_backward_hooks", "_backward_pre_hooks"):
                self._stack.enter_context(_hooks_judged(getattr(part, kind), f"a backward hook of {name or 'the network'}"))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it, and put torch and the network's hooks back."""
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._stack.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``; judge a hook that it registers."""
        if func == Tensor.register_hook:
            args = (args[0], _judged(args[1], "a hook of a tensor (register_hook)"), *args[2:])
        return func(*args, **(kwargs or {}))


def _judged(hook: Callable[..., Any], name: str) -> Callable[..., None]:
    """Return a hook that calls ``hook``, and raises an EdgeflError if that returns another gradient."""

    def call(*args: Any, **options: Any) -> None:
        found = hook(*args, **options)
        if found is not None and not any(found is given for given in args):
            raise EdgeflError(
                f"{name} changes gradients, and a graph cannot call it; remove it, or change the gradient in the loss"
            )

    return call


@contextlib.contextmanager
def _hooks_judged(hooks: dict[int, Callable[..., Any]], name: str) -> Iterator[None]:
    before = dict(hooks)
    hooks.update({number: _judged(hook, name) for number, hook in before.items()})
    try:
        yield
    finally:
        hooks.update(before)


@contextlib.contextmanager
def _functions_judged() -> Iterator[None]:
    def apply(cls: type[Function], *args: Any, **options: Any) -> Any:
        differentiates = torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        if differentiates and cls.__name__ == "CheckpointFunction":
            raise EdgeflError(
                "checkpoint with use_reentrant=True computes its gradients outside of the graph; pass use_reentrant=False"
            )
        if differentiates and cls.__module__.partition(".")[0] != "torch" and not _is_derivative(cls, args, options):
            raise EdgeflError(
                f"{cls.__name__} (a torch.autograd.Function) has a backward pass of its own, which is not the derivative of its forward "
                "pass; a graph has only that: write (f(x) − s(x)).detach() + s(x) for the values of f with the gradient of s"
            )
        return _FUNCTION.__get__(None, cls)(*args, **options)

    Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Function.apply = _FUNCTION  # type: ignore[method-assign]


class _Context:
    """Takes the place of the context of a Function whose forward pass is differentiated as any other code."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs

    def ignore(self, *args: Any) -> None:
        """Do nothing."""

    save_for_backward = save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = ignore


def _is_derivative(cls: type[Function], args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return the same as :func:`_found_derivative`; a Function is differentiated once for each kind of arguments, whatever their sizes."""
    kinds = [(a.ndim, a.dtype, a.requires_grad) if isinstance(a, Tensor) else a for a in (*args, *options.items())]
    known = _DERIVATIVES.setdefault(cls, set())
    if (kind := repr(kinds)) not in known and _found_derivative(cls, args, options):
        known.add(kind)
    return kind in known


def _found_derivative(cls: type[Function], args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether the backward pass of a Function is the derivative of its forward pass, also for values far from those of ``args``."""
    needs = tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
    first = () if cls.setup_context is not Function.setup_context else (_Context(needs),)
    try:
        for scale in _SCALES:
            places, found = _gradients(_FUNCTION.__get__(None, cls), args, options, scale, None)
            _, expected = _gradients(lambda *own, **more: cls.forward(*first, *own, **more), args, options, scale, places)
            if not all(map(_agree, found, expected)):
                return False
    except Exception:  # noqa: BLE001 - the forward pass may need what only torch's own context has
        return False
    return True


def _gradients(
    function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], scale: float, places: list[int] | None
) -> tuple[list[int], list[Tensor]]:
    """Return the gradients of random sums of a function's results, by each argument that needs one, and which results were summed.

    ``places`` are the results to sum; None: those that have a gradient. A Function may mark others as not differentiable.
    """
    random = torch.Generator().manual_seed(0)
    leaves = [
        (arg.detach() * scale).requires_grad_(arg.requires_grad) if isinstance(arg, Tensor) and arg.is_floating_point() else arg
        for arg in args
    ]
    wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    with torch.enable_grad():
        results = function(*(leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves), **options)
    every = results if isinstance(results, tuple) else (results,)
    if places is None:
        places = [i for i, r in enumerate(every) if isinstance(r, Tensor) and r.requires_grad]
    results = [every[i] for i in places if every[i].requires_grad]
    found: list[Tensor] = []
    for size in _GRADIENTS if results else ():
        upstream = [size * torch.randn(r.shape, generator=random).to(r.dtype) for r in results]
        found += torch.autograd.grad(results, wanted, upstream, retain_graph=True, materialize_grads=True)
    return places, found or [torch.zeros_like(leaf) for leaf in wanted for _ in _GRADIENTS]


def _agree(found: Tensor, expected: Tensor) -> bool:
    far = (found - expected).norm() > _TOLERANCE * expected.norm()
    return bool(torch.equal(found.isfinite(), expected.isfinite())) and not bool(far)
