"""Initial weights of a network from a safetensors file, or from the tensors that ``torch.save`` has written."""

import io
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from edgefl.errors import WireError, first_line
from edgefl.util.files import require_plain, sha256

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
"""The linear layers of :class:`edgefl.models.attention.OpenAttention` that have no layer of their own in torch's class."""
_NAMED = 5


@dataclass(frozen=True)
class WeightsFile:
    """The file with a network's initial weights.

    Attributes:
        sha256: of its content; a file that has changed since is refused.
        without: the beginning of names of tensors that keep their random values, such as ``fc.``; empty: none.
        prefix: begins every name in the file and none in the network, such as ``module.``; it is left out.
    """

    path: str
    sha256: str
    without: str = ""
    prefix: str = ""

    def tensors(self) -> Mapping[str, Tensor]:
        """Return name → floating-point tensor; WireError if the file cannot be read, is no safetensors file, or has changed."""
        return _floats(self._all())

    def fill(self, network: nn.Module) -> None:
        """Copy the integers and booleans of the file, such as masks and counters, into the buffers of a network that have their names.

        Raises:
            WireError: one has another shape than the network's.
        """
        tensors = self._all()
        for name, buffer in network.named_buffers():
            if buffer.is_floating_point() or (value := tensors.get(name)) is None:
                continue
            if value.shape != buffer.shape:
                raise WireError(f"{self.path}: {name} has shape {tuple(value.shape)}, expected {tuple(buffer.shape)}")
            buffer.copy_(value)

    def _all(self) -> dict[str, Tensor]:
        tensors = {name.removeprefix(self.prefix): t for name, t in _tensors(self.path, self.sha256).items()}
        return {name: t for name, t in tensors.items() if not (self.without and name.startswith(self.without))}


def weights_in(path: str, without: str, names: Collection[str]) -> WeightsFile:
    """Return the record of the file at ``path`` for a network with tensors of these ``names``; WireError if it cannot be read."""
    content = _content(path)
    return WeightsFile(path, sha256(content), without, _prefix(_floats(_of_content(path, content)), names))


def _prefix(stored: Collection[str], names: Collection[str]) -> str:
    """Return what begins every ``stored`` name and none of the network's: torch's wrappers, or a module that held the network.

    >>> _prefix(["_orig_mod.module.fc.weight", "_orig_mod.module.fc.bias"], ["fc.weight", "fc.bias"])
    '_orig_mod.module.'
    """
    parts = next(iter(stored), "").split(".")
    for prefix in (".".join(parts[:count]) + "." for count in range(1, len(parts))):
        bare = {name.removeprefix(prefix) for name in stored if name.startswith(prefix)}
        if len(bare) == len(stored) and bare & {*names} and not any(name.startswith(prefix) for name in names):
            return prefix
    return ""


@lru_cache(maxsize=1)
def _tensors(path: str, digest: str) -> Mapping[str, Tensor]:
    content = _content(path)
    if sha256(content) != digest:
        raise WireError(f"{path}: the weights have changed since the run began; restore the file, or start a new run")
    return _of_content(path, content)


def _content(path: str) -> bytes:
    try:
        require_plain(Path(path), WireError)
        return Path(path).read_bytes()
    except OSError as error:
        raise WireError(f"{path}: cannot be read ({error.strerror})") from None


def _of_content(path: str, content: bytes) -> dict[str, Tensor]:
    # A pickle begins with 0x80, and so does the length of some headers of safetensors, after which a brace comes.
    if content.startswith((b"PK\3\4", b"\x80")) and content[8:9] != b"{":
        return _of_torch(path, content)
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise WireError(f"{path}: not a valid safetensors file ({error})") from None


def _floats(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


def _of_torch(path: str, content: bytes) -> dict[str, Tensor]:
    """Return the tensors of a ``state_dict`` that ``torch.save`` has written; WireError says how to convert anything else."""
    first = f"with torch where the network's code is: torch.save(model.state_dict(), {Path(path).name!r})"
    try:
        saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)  # noqa: TID251 - tensors alone
    except Exception as error:  # noqa: BLE001 - torch raises anything
        script = "torch.jit" in str(error) or b"constants.pkl" in content
        what = "a TorchScript program" if script else "more than tensors, or damaged"
        load = f"; or torch.jit.load({Path(path).name!r}).state_dict()" if script else ""
        raise WireError(f"{path}: holds {what} ({first_line(error)}), expected a state_dict: write one {first}{load}") from None
    if isinstance(saved, Mapping) and saved and all(isinstance(tensor, Tensor) for tensor in saved.values()):
        return {str(name): tensor.detach() for name, tensor in saved.items()}
    keys = list(saved) if isinstance(saved, Mapping) else []
    inside = [key for key in keys if isinstance(saved[key], Mapping) and any(isinstance(t, Tensor) for t in saved[key].values())]
    what = f"a checkpoint with {', '.join(map(str, keys[:_NAMED]))}" if keys else f"a {type(saved).__name__}"
    if inside:
        source = f"torch.load({Path(path).name!r}, map_location='cpu', weights_only=True)[{inside[0]!r}]"
        raise WireError(f"{path}: holds {what}, expected a state_dict: torch.save({source}, 'weights.pt'), and give weights.pt")
    raise WireError(f"{path}: holds {what}, expected a state_dict: write one {first}")


def opened_tensors(tensors: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Return ``tensors`` with those of ``nn.MultiheadAttention`` under the ``names`` of its opened form; others as they are.

    >>> weight = torch.arange(6.0).reshape(6, 1)
    >>> names = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    >>> {name: tensor.flatten().tolist() for name, tensor in opened_tensors({"in_proj_weight": weight}, names).items()}
    {'q_proj.weight': [0.0, 1.0], 'k_proj.weight': [2.0, 3.0], 'v_proj.weight': [4.0, 5.0]}
    """
    opened: dict[str, Tensor] = {}
    known = set(names)
    for name, tensor in tensors.items():
        path, dot, last = name.rpartition(".")
        kind = last.rpartition("_")[2]
        apart = [f"{path}{dot}{projection}.{kind}" for projection in PROJECTIONS]
        one = f"{path}{dot}{last.removesuffix('_weight')}.weight"
        if name not in known and last in ("in_proj_weight", "in_proj_bias") and known >= {*apart}:
            opened |= dict(zip(apart, tensor.chunk(3), strict=True))
        elif name not in known and last in (f"{projection}_weight" for projection in PROJECTIONS) and one in known:
            opened[one] = tensor
        else:
            opened[name] = tensor
    return opened


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
    where = "weights" if isinstance(source, Mapping) else str(source)
    floats: Mapping[str, Tensor] = _floats(source if isinstance(source, Mapping) else _of_content(where, _content(where)))
    prefix = _prefix(floats, shapes)
    floats = opened_tensors({name.removeprefix(prefix): tensor for name, tensor in floats.items()}, shapes)
    if without:
        floats = {name: tensor for name, tensor in floats.items() if not name.startswith(without)}
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(without)}
    for same in tied:
        if present := sorted(same & floats.keys()):
            if different := [name for name in present if not torch.equal(floats[name], floats[present[0]])]:
                raise WireError(f"{where}: {present[0]} and {different[0]} differ, and the network has one tensor of both names")
            of_both = dict.fromkeys(same & shapes.keys(), floats[present[0]])
            floats = {name: tensor for name, tensor in floats.items() if name not in same} | of_both
    if different := sorted(floats.keys() ^ shapes.keys()):
        raise WireError(f"{where}: tensors missing or not expected: {', '.join(different[:_NAMED])}{_more(different)}")
    problems = [
        f"{name} has shape {tuple(floats[name].shape)}, expected {shape}"
        for name, shape in shapes.items()
        if tuple(floats[name].shape) != shape
    ]
    if problems:
        raise WireError(f"{where}: {'; '.join(problems[:_NAMED])}{_more(problems)}")
    for name, tensor in floats.items():
        if not bool(torch.isfinite(tensor).all()):
            raise WireError(f"{where}: {name} holds NaN or infinity, expected finite values")
    return floats


def _more(all_: list[str]) -> str:
    return f" and {len(all_) - _NAMED} more" if len(all_) > _NAMED else ""
