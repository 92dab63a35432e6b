"""Initial weights of a network from a safetensors file."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from edgefl.errors import WireError
from edgefl.util.files import sha256

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
"""The linear layers of :class:`edgefl.models.attention.OpenAttention` that have no layer of their own in torch's class."""
_NAMED = 5


@dataclass(frozen=True)
class WeightsFile:
    """The file with a network's initial weights.

    Attributes:
        sha256: of its content; a file that has changed since is refused.
        without: the beginning of names of tensors that keep their random values, such as ``fc.``; empty: none.
    """

    path: str
    sha256: str
    without: str = ""

    def tensors(self) -> Mapping[str, Tensor]:
        """Return name → tensor; WireError if the file cannot be read, is no safetensors file, or has changed."""
        return {
            name: t
            for name, t in _tensors(self.path, self.sha256).items()
            if not (self.without and name.startswith(self.without))
        }


def weights_in(path: str, without: str = "") -> WeightsFile:
    """Return the record of the file at ``path``; WireError if it cannot be read."""
    return WeightsFile(path, sha256(_content(path)), without)


@lru_cache(maxsize=1)
def _tensors(path: str, digest: str) -> Mapping[str, Tensor]:
    content = _content(path)
    if sha256(content) != digest:
        raise WireError(f"{path}: the weights have changed since the run began; restore the file, or start a new run")
    return _of_content(path, content)


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise WireError(f"{path}: cannot be read ({error.strerror})") from None


def _of_content(path: str, content: bytes) -> dict[str, Tensor]:
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise WireError(f"{path}: not a valid safetensors file ({error})") from None
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


def opened_tensors(tensors: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Return ``tensors`` with those of ``nn.MultiheadAttention`` under the ``names`` of its opened form; others as they are.

    >>> weight = torch.arange(6.0).reshape(6, 1)
    >>> names = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    >>> {name: tensor.flatten().tolist() for name, tensor in opened_tensors({"in_proj_weight": weight}, names).items()}
    {'q_proj.weight': [0.0, 1.0], 'k_proj.weight': [2.0, 3.0], 'v_proj.weight': [4.0, 5.0]}
    """
    found: dict[str, Tensor] = {}
    known = set(names)
    for name, tensor in tensors.items():
        path, dot, last = name.rpartition(".")
        kind = last.rpartition("_")[2]
        apart = [f"{path}{dot}{projection}.{kind}" for projection in PROJECTIONS]
        one = f"{path}{dot}{last.removesuffix('_weight')}.weight"
        if name not in known and last in ("in_proj_weight", "in_proj_bias") and known >= {*apart}:
            found |= dict(zip(apart, tensor.chunk(3), strict=True))
        elif name not in known and last in (f"{projection}_weight" for projection in PROJECTIONS) and one in known:
            found[one] = tensor
        else:
            found[name] = tensor
    return found


def checked_weights(
    source: Path | str | Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    without: str = "",
    tied: Iterable[set[str]] = (),
) -> Mapping[str, Tensor]:
    """Return the tensors of a safetensors file, or those given, except integer counters and names that begin with ``without``.

    One name of each set of ``tied`` names suffices; those in ``shapes`` get its tensor.

    Raises:
        WireError: tied tensors, names or shapes differ from ``shapes`` (the first five are named), or a value is not finite.
    """
    told = "weights" if isinstance(source, Mapping) else str(source)
    if isinstance(source, Mapping):
        floats: Mapping[str, Tensor] = {name: tensor for name, tensor in source.items() if tensor.is_floating_point()}
    else:
        floats = _of_content(told, _content(told))
    floats = opened_tensors(floats, shapes)
    if without:
        floats = {name: tensor for name, tensor in floats.items() if not name.startswith(without)}
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(without)}
    for same in tied:
        if present := sorted(same & floats.keys()):
            if different := [name for name in present if not torch.equal(floats[name], floats[present[0]])]:
                raise WireError(f"{told}: {present[0]} and {different[0]} differ, and the network has one tensor of both names")
            of_both = dict.fromkeys(same & shapes.keys(), floats[present[0]])
            floats = {name: tensor for name, tensor in floats.items() if name not in same} | of_both
    if different := sorted(floats.keys() ^ shapes.keys()):
        raise WireError(f"{told}: tensors missing or not expected: {', '.join(different[:_NAMED])}{_more(different)}")
    problems = [
        f"{name} has shape {tuple(floats[name].shape)}, expected {shape}"
        for name, shape in shapes.items()
        if tuple(floats[name].shape) != shape
    ]
    if problems:
        raise WireError(f"{told}: {'; '.join(problems[:_NAMED])}{_more(problems)}")
    for name, tensor in floats.items():
        if not bool(torch.isfinite(tensor).all()):
            raise WireError(f"{told}: {name} holds NaN or infinity, expected finite values")
    return floats


def _more(all_: list[str]) -> str:
    return f" and {len(all_) - _NAMED} more" if len(all_) > _NAMED else ""
