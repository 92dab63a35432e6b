"""The layers of a network that are sums of principal kernels, how many kernels a tier has of each, and their places."""

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from edgefl.factor.kernels import KernelLayer, all_of, kept_kernels, kernels_of
from edgefl.factor.width import stacked_in
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture, stem_and_classifier, weighted_layers
from edgefl.records import Place, Tier

Gates = dict[str, dict[str, int]]


def gates_of(network: nn.Module) -> Gates:
    """Return layer → weight → its stacked matrices, of linear layers, plain convolutions beyond 1×1 and recurrent layers."""
    keep, stacks = stem_and_classifier(network), stacked_in(network)
    found: Gates = {}
    for name, layer in weighted_layers(network):
        if name not in keep and (isinstance(layer, nn.Linear) or (layer.groups == 1 and layer.kernel_size != (1, 1))):
            found[name] = {"weight": 1}
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase):
            weights = [n for n, _ in module.named_parameters() if n.startswith(("weight_ih", "weight_hh"))]
            found[name] = {n: stacks.get(f"{name}.{n}", 1) for n in weights}
    return found


def kernel_counts(architecture: Architecture, tier: Tier) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return layer → weight → r of each of its matrices."""
    network = architecture.skeleton()
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, of in gates_of(network).items():
        for weight, gates in of.items():
            rows, *rest = getattr(network.get_submodule(name), weight).shape
            count = kept_kernels(name, tier.ratio, kernels_of((rows // gates, *rest)))
            found.setdefault(name, {})[weight] = (count,) * gates
    return found


def matrices(name: str, weight: str, counts: Sequence[int], place: Place, state: GlobalState) -> Iterator[KernelLayer]:
    """Yield the matrices of one weight; ``place`` is its place in the tier's dense network."""
    target = f"{name}.{weight}"
    rows, *rest = state.tensors[target].shape
    shape = (rows // len(counts), *rest)
    taken = all_of(place.index[0], rows)
    columns = all_of(place.index[1], rest[0])
    for gate, count in enumerate(counts):
        single = weight == "weight"
        prefix, suffix = (name, ".weight") if single else (f"{target}.{gate}", "")
        own = taken[(taken >= gate * shape[0]) & (taken < (gate + 1) * shape[0])] - gate * shape[0]
        key = target if single else f"{target}[{gate}]"
        yield KernelLayer(target, key, shape, gate, f"{prefix}.u{suffix}", f"{prefix}.v{suffix}", own, columns, count)


def dense_name(name: str, dense: Mapping[str, Place]) -> str:
    """Return the name in the dense network of a client's tensor that is no factor: only Conv_U's bias has moved."""
    return name if name in dense else name.removesuffix(".u.bias") + ".bias"
