"""Facts about single layers: kind, shape, channels and costs, and why a layer has the form that a method gives it."""

from collections.abc import Sequence

from torch import nn

from edgefl.methods.layer_rules import FROZEN, OUTSIDE, kind_of
from edgefl.records import Cost
from edgefl.util.convolutions import Convolution

NO_GAIN = "no gain"
ENDS = {"stem": "the first convolution", "classifier": "the last layer"}
REASONS = {
    **{end: f"{place}; kinds of layers leave it out, its name in factorize does not" for end, place in ENDS.items()},
    "by design": "the network lists it among the layers that its paper leaves dense; its name in factorize overrules that",
    "depthwise": "every channel has a filter of its own: there is no matrix to factorize",
    "grouped": "a grouped convolution has no low-rank form here",
    "projection": "a recurrent layer with a projection has no low-rank form here",
    FROZEN: "its weight or bias is not trained",
    "shared": "another name in the network has the same weight or bias",
    "parametrized": "its weight is computed from other tensors, as by weight_norm",
    "own forward": "it computes something else than torch's class of its kind, in a forward of its own or in hooks",
    "own tensors": "it has tensors besides its weight and bias, which factors would lose",
    OUTSIDE: "the option factorize, or its default, leaves it out",
    NO_GAIN: "factors would not be smaller",
    "depth": "the tier's network ends before it",
    "base": "it is part of the frozen base and has no adapter",
    "early block": "the tier trains later blocks only; this one runs forward",
    "no rule": "this method factorizes no layers of its kind",
    "output": "its outputs are the network's",
    "input": "it reads the network's input",
    "unused": "nothing reads its weight, so nothing says how to cut it",
    "share of a share": "its channels are shares of channels, such as heads; the larger number is cut, the other one is whole",
}
"""Why a layer has its form, in a sentence."""
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def output_of(name: str, layer: nn.Module) -> tuple[str, int]:
    """Return the tensor of the layer ``name`` that has a row or column for each output, and its dimension that counts them."""
    if isinstance(layer, nn.RNNBase):
        return f"{name}.weight_hh_l{layer.num_layers - 1}", 1
    if isinstance(layer, nn.MultiheadAttention):
        return f"{name}.out_proj.weight", 0
    return f"{name}.weight", int(isinstance(layer, (nn.Embedding, nn.EmbeddingBag, *_TRANSPOSED)))


def kind_of_layer(layer: nn.Module) -> str:
    """Return the kind of a layer in a table: "attention", "embedding", "norm", or that of :func:`edgefl.methods.layer_rules.kind_of`."""
    if isinstance(layer, nn.MultiheadAttention):
        return "attention"
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    kind = kind_of(layer)
    return "norm" if "norm" in kind.lower() else kind


def shape_of(layer: nn.Module) -> tuple[int, ...]:
    """Return the shape of a layer's weight; of a layer without one, such as a recurrent layer, that of its first parameter."""
    weight = getattr(layer, "weight", None)
    return tuple((next(layer.parameters(recurse=False)) if weight is None else weight).shape)


def channels_of(layer: nn.Module) -> tuple[int, int] | None:
    """Return how many channels a layer reads and returns; None for kinds of layers that do not have both.

    >>> channels_of(nn.Conv2d(3, 8, 1)), channels_of(nn.BatchNorm2d(8))
    ((3, 8), None)
    """
    if isinstance(layer, (Convolution, *_TRANSPOSED)):
        return layer.in_channels, layer.out_channels
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, nn.RNNBase):
        return layer.input_size, layer.hidden_size
    if isinstance(layer, nn.MultiheadAttention):
        return layer.embed_dim, layer.embed_dim
    return (layer.num_embeddings, layer.embedding_dim) if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) else None


def costs_of(cost: Cost, paths: Sequence[str]) -> dict[str, int]:
    """Return the layer's ``macs_forward`` of one sample and its ``parameter_bytes``: of all its ``paths``, and of parts such as factors."""
    inside = tuple(f"{path}." for path in paths if path)
    rows = [row for row in cost.layers if row.layer in paths or row.layer.startswith(inside)]
    return {key: sum(getattr(row, key) for row in rows) for key in ("macs_forward", "parameter_bytes")}
