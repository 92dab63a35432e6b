"""From the name of a user's network to a factory: an import path, a Python file, timm, torchvision or an ONNX file."""

import difflib
import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from edgefl.errors import ConfigError, InputError, first_line
from edgefl.util.modules import OBJECT, is_file, object_in
from edgefl.util.networks import is_onnx, object_of, title_of

Factory = Callable[..., nn.Module]
_TORCH = str(Path(torch.__file__).parent)


def factory_of(spec: str, key: str = "model") -> Any:
    """Return the factory, class, module or function that ``spec`` names.

    Args:
        spec: ``package.module:name``, also in the working directory; ``file.py:name``; ``timm:name``; ``torchvision:name``; a path
            that ends in ``.onnx``; or the name of an object that this process has been given.
        key: of the configuration that has the name, such as ``model``.

    Raises:
        InputError: there is no such factory, or importing it raised an error.
    """
    if (known := object_of(spec)) is not None:
        return known
    if spec.startswith(OBJECT):
        raise InputError(
            f"{key}: {title_of(spec)} was given as an object from Python, which only that process has; give it again, as in "
            f"simulate(RunConfig({key}=my_{key}, …), folder, resume=True), or define it at the top of a module"
        )
    if is_onnx(spec) and key == "model":
        from edgefl.onnxgrad.torch_layers import network_in  # onnx is imported only where it is needed

        return network_in(Path(spec))[0]
    expected = _EXPECTED[key]
    where, _, attribute = spec.rpartition(":")
    if not where or not attribute:
        raise InputError(
            f"{spec!r} is not of the form package.module:NAME, such as my_package.my_module:my_{key}, or file.py:NAME; give {expected}"
        )
    if where in _LIBRARIES and key == "model":
        return _LIBRARIES[where](_imported_library(where, spec), attribute)
    factory = object_in(spec, title_of(spec), expected)
    if not callable(factory):
        raise InputError(f"{spec} is {type(factory).__name__}, expected {expected}")
    return factory


_EXPECTED = {
    "model": "a factory of a network: a function or class that returns a torch.nn.Module, also as timm:NAME or torchvision:NAME",
    "loss": "a function (outputs, targets) that returns a scalar tensor",
    "lr_schedule": "a function (round, rounds) that returns a share of the learning rate",
    "metric": "a function (outputs, targets) that returns a number",
}


def root_of(spec: str) -> str | None:
    """Return the folder from which the package of an imported ``package.module:factory`` is found; None for other specs."""
    module = spec.partition(":")[0]
    file = None if is_file(spec) else getattr(sys.modules.get(module), "__file__", None)
    if not file or module in _LIBRARIES:
        return None
    return str(Path(file).resolve().parents[module.count(".") + Path(file).name.startswith("__init__.")])


_CLASSES = ("classes", "num_classes", "n_classes")
_CHANNELS = ("in_chans", "in_channels")


def fitted(factory: Factory, shape: tuple[int, ...], classes: int, model: str = "model") -> Factory:
    """Return ``factory`` with the arguments that it has for a sample's shape and the number of classes (0: unknown), by their names.

    ConfigError, which begins with ``model``: it needs one of them, whose value is not known.

    >>> fitted(lambda num_classes, width=1: (num_classes, width), (1, 8, 8), 10)()
    (10, 1)
    """
    try:
        names = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a builtin
        return factory
    values: dict[str, tuple[int, ...] | int] = {"input_shape": shape, **dict.fromkeys(_CLASSES, classes)}
    values |= dict.fromkeys(_CHANNELS, shape[0] if len(shape) > 1 else 0)
    known = {name: value for name, value in values.items() if name in names and value}
    for name in values:
        if name in names and name not in known and names[name].default is inspect.Parameter.empty:
            remedy = "give the number of classes, such as --classes 10" if name in _CLASSES else f"give {name} a default"
            raise ConfigError(f"{model}: the factory needs {name}, which is not known; {remedy}")
    return functools.partial(factory, **known) if known else factory


def sources_sha256(factory: object, network: nn.Module | None = None) -> str:
    """Return a hash of the files that define ``factory`` and the classes of ``network``, except torch's."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    files = {_file_of(kind) for kind in (factory, *map(type, network.modules() if network else ()))}
    return _sha256(file for file in files if file and not file.startswith(_TORCH))


def onnx_sha256(path: str) -> str:
    """Return a hash of an ONNX file and of the files beside it that have its weights."""
    from edgefl.onnxgrad.to_torch import files_of

    return _sha256(files_of(Path(path)))


def _sha256(files: Iterable[str | Path]) -> str:
    digests = {hashlib.sha256(Path(file).read_bytes()).digest() for file in files}
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def _file_of(kind: Any) -> str | None:
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:  # no class or function
        return None
    return file if file and Path(file).is_file() else None


def _imported_library(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        lacking = (error.name or name).partition(".")[0]  # timm itself needs torchvision
        raise InputError(
            f"{spec}: {name} cannot be imported ({first_line(error)}); install it with: pip install {lacking}"
        ) from None


def _timm(timm: Any, name: str) -> Factory:
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())

    def build(input_shape: tuple[int, ...] = (), classes: int = 0) -> nn.Module:
        options: dict[str, int | tuple[int, int]] = {"num_classes": classes} if classes else {}
        if len(input_shape) == 3:
            options["in_chans"] = input_shape[0]
            if getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "fixed_input_size", False):
                height, width = input_shape[1:]
                options["img_size"] = height if height == width else (height, width)  # some have room for a number only
        network: nn.Module = timm.create_model(name, pretrained=False, **options)
        return network

    return build


def _torchvision(torchvision: Any, name: str) -> Factory:
    names = torchvision.models.list_models()
    if name not in names:
        raise _unknown("torchvision", name, names)

    def build(classes: int = 0) -> nn.Module:
        options = {"num_classes": classes} if classes else {}
        network: nn.Module = torchvision.models.get_model(name, weights=None, **options)
        return network

    return build


_LIBRARIES: dict[str, Callable[[Any, str], Factory]] = {"timm": _timm, "torchvision": _torchvision}


def _unknown(library: str, name: str, names: Sequence[str]) -> InputError:
    close = difflib.get_close_matches(name, names, n=5)
    hint = f"did you mean {', '.join(close)}?" if close else f"it has {len(names)}, listed by {library}'s list_models()"
    return InputError(f"{library}:{name}: {library} has no such network; {hint}")
