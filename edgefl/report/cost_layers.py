"""Where the cost of a tier sits: its layers, with their share of a training step and of the bytes that travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgefl.report.cost_rows import LAYER_COLUMNS
from edgefl.report.tables import Row

OTHER = "(other)"
UNPLACED = "(network)"


def macs_of_step(row: Row, layer: Row) -> dict[str, int]:
    """Return the MACs of one layer in a whole training step, under the names of the costs.

    Args:
        row: a tier's costs: ``batch_size`` and ``micro_batch``.
        layer: the layer's costs, per sample but for ``macs_compose``, which is per forward and backward pass.

    >>> layer = {"macs_forward": 10, "macs_backward_input": 9, "macs_backward_weight": 10, "macs_compose": 7}
    >>> sum(macs_of_step({"batch_size": 4, "micro_batch": 2}, layer).values())
    130
    """
    samples = row["batch_size"]
    times = {"macs_forward": samples, "macs_backward_input": samples, "macs_backward_weight": samples}
    times["macs_compose"] = -(-samples // row["micro_batch"])
    return {key: layer[key] * count for key, count in times.items()}


def layer_rows(row: Row) -> list[dict[str, Any]]:
    """Return a tier's layers in the network's order, each with its step, its share of it and the bytes that travel.

    Every layer gains ``macs_train_step``, ``macs_share`` (of all layers, 0 where nothing multiplies), ``download_bytes`` and
    ``upload_bytes``; where a step trains one of several networks, these are the layers of the tier's own. A tensor belongs to the layer
    whose name is the longest prefix of its own, or else to the network as a whole.
    """
    layers = [{**layer, "macs_train_step": sum(macs_of_step(row, layer).values())} for layer in row["layers"]]
    total = sum(layer["macs_train_step"] for layer in layers)
    sent = _sent(row, [layer["layer"] for layer in layers])
    if UNPLACED in sent and all(layer["layer"] != UNPLACED for layer in layers):
        layers.insert(0, {**_summed([], UNPLACED), "kind": ""})
    for layer in layers:
        down, up = sent.get(layer["layer"], (0, 0))
        share = layer["macs_train_step"] / total if total else 0.0
        layer |= {"macs_share": share, "download_bytes": down, "upload_bytes": up}
    return layers


def costliest(layers: Sequence[Row], most: int, cost: Callable[[Row], float]) -> list[Row]:
    """Return the ``most`` layers that cost most, in the network's order, and the rest summed in a last row ``(other)``.

    Args:
        layers: those of :func:`layer_rows`.
        most: how many layers keep a row of their own.
        cost: what a layer is judged by.
    """
    if len(layers) <= most:
        return list(layers)
    ranked = sorted(range(len(layers)), key=lambda i: cost(layers[i]), reverse=True)
    kept = sorted(ranked[:most])
    rest = [layers[i] for i in sorted(ranked[most:])]
    return [*(layers[i] for i in kept), _summed(rest, OTHER)]


def _summed(layers: Sequence[Row], name: str) -> dict[str, Any]:
    kind = f"{len(layers)} layer{'' if len(layers) == 1 else 's'}"
    return {"layer": name, "kind": kind, **{key: sum(layer[key] for layer in layers) for key in LAYER_COLUMNS[2:]}}


def _sent(row: Row, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return each layer's bytes down and up."""
    known = set(names)
    sent: dict[str, tuple[int, int]] = {}
    for tensor in row["tensors"]:
        name = _owner(tensor["name"], known)
        down, up = sent.get(name, (0, 0))
        sent[name] = (down + tensor["download_bytes"], up + tensor["upload_bytes"])
    return sent


def _owner(tensor: str, layers: set[str]) -> str:
    name = tensor
    while name not in layers:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return UNPLACED
    return name
