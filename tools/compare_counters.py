"""Set edgefl's multiply-accumulates beside a closed form and beside other counters.

A page of docs/ holds the tables between ``<!-- counters:begin -->`` and ``<!-- counters:end -->``. A peer that is not installed is left
out with a word, and so is a network of a package that cannot be imported. Exits with status 1 when edgefl differs from a closed form.
The parts are in tools/counters/: layers and their closed forms, networks, peers, Markdown.

Usage: python tools/compare_counters.py [--check | --write] [--page FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version

import torch
from counters.markdown import arguments, percent, publish, table
from counters.networks import NETWORKS, ClosedForm, Network
from counters.peers import PEERS, TORCH, TORCH_BOTH, Figure, Peer
from counters.reference_layers import LAYERS, Layer
from torch import Tensor, nn

import edgefl
from edgefl.onnxgrad.contexts import quiet
from edgefl.onnxgrad.graphs import OPSET
from edgefl.onnxgrad.macs import count_macs


@dataclass(frozen=True)
class Row:
    """One line of both tables: MACs per sample by the closed form, by edgefl's two counters and by the peers."""

    name: str
    unit: str
    forward: int
    both: int
    edgefl_forward: Figure
    edgefl_both: Figure
    edgefl_graph: Figure
    peers: dict[str, Figure]
    torch_both: Figure

    @property
    def agrees(self) -> bool:
        """Whether edgefl's three figures are the closed form's."""
        return (self.edgefl_forward, self.edgefl_graph, self.edgefl_both) == (self.forward, self.forward, self.both)


def graph_macs(module: nn.Module, x: Tensor, *, fold: bool = True) -> Figure:
    """Return MACs per sample of the exported graph; work on weights alone is in it unless constants are folded."""
    try:
        with quiet():
            program = torch.onnx.export(module.eval(), (x,), dynamo=True, opset_version=OPSET, optimize=fold, verbose=False)
        assert program is not None
        counted = count_macs(program.model_proto, len(x))
    except Exception as error:  # noqa: BLE001 - an exporter's failure, of any kind, is a word in the table
        return f"error: {error}"
    return f"uncounted: {', '.join(counted.uncounted_ops)}" if counted.uncounted_ops else counted.total // len(x)


def profiled(network: nn.Module, x: Tensor, prefix: str = "") -> tuple[Figure, Figure]:
    """Return edgefl's MACs of a pass over one sample, forward and with backward, of the layers whose names start with ``prefix``."""
    row = edgefl.profile(network, (x,), batch_size=1)[0]
    if row.uncounted_ops:
        return (f"uncounted: {', '.join(row.uncounted_ops)}",) * 2
    layers = [layer for layer in row.layers if layer.layer.startswith(prefix)]
    forward, *others = (
        sum(getattr(layer, key) for layer in layers)
        for key in ("macs_forward", "macs_backward_input", "macs_backward_weight", "macs_compose")
    )
    return forward, forward + sum(others)


def layer_row(layer: Layer, peers: Sequence[Peer] = PEERS) -> Row:
    """Count one layer by itself; its gradients behind another layer, whose own work is taken off."""
    module, x = layer.build(), torch.zeros(1, *layer.shape)
    network, sample = layer.behind_another()
    both = profiled(network, sample, "1")[1]
    # Of weights that are not learnt, edgefl's figure of a pass has composition once: the forward one.
    network[1].requires_grad_(False)
    frozen = edgefl.profile(network, (sample,), batch_size=1)[0].layers
    forward = sum(row.macs_forward + row.macs_compose for row in frozen if row.layer.startswith("1"))
    network[1].requires_grad_(True)
    whole, front = (TORCH_BOTH.measure(part, sample) for part in (network, network[:1]))
    torch_both = whole - front if isinstance(whole, int) and isinstance(front, int) else "error"
    found = {peer.name: peer.measure(module, x) for peer in peers}
    graph = graph_macs(module, x, fold=not layer.compose_macs)
    return Row(layer.name, "k", layer.forward, layer.both, forward, both, graph, found, torch_both)


def network_row(network: Network, peers: Sequence[Peer] = PEERS) -> Row | str:
    """Count a whole network, or say why not."""
    try:
        module = network.build()
    except Exception as error:  # noqa: BLE001 - so is a network that cannot be built, whatever raises
        return f"{network.name}: {type(error).__name__}: {str(error).splitlines()[0]}"
    x = torch.zeros(2, *network.shape, dtype=network.dtype)  # normalisation by batch statistics wants two
    forward, both = ClosedForm().walk(module, x)
    found = {peer.name: peer.measure(module, x[:1]) for peer in peers}
    return Row(
        network.name, "M", forward, both, *profiled(module, x), graph_macs(module, x), found, TORCH_BOTH.measure(module, x)
    )


def cell(figure: Figure, expected: int, unit: str) -> str:
    """Return a figure as the tables show it: ``=`` where it is ``expected``, otherwise with the difference beside it.

    >>> cell(37_748_736, 9_437_184, "k"), cell(9_437_184, 9_437_184, "k"), cell("error", 1, "k")
    ('37,749 k (+300 %)', '=', '*error*')
    """
    if isinstance(figure, str):
        return f"*{figure}*"
    return "=" if figure == expected else f"{shown(figure, unit)} ({percent(figure / expected - 1)})"


def shown(macs: int, unit: str) -> str:
    """Return MACs in thousands or millions."""
    return f"{macs / 1e3:,.0f} k" if unit == "k" else f"{macs / 1e6:,.1f} M"


def counters_markdown(rows: Sequence[Row], skipped: Sequence[str] = (), peers: Sequence[Peer] = PEERS) -> str:
    """Return both tables of counters, what they are of, and a sentence for each peer."""
    there = [peer for peer in peers if peer.installed]
    forward = [
        [row.name, shown(row.forward, row.unit)]
        + [cell(f, row.forward, row.unit) for f in (row.edgefl_forward, row.edgefl_graph, *(row.peers[p.name] for p in there))]
        for row in rows
    ]
    both = [
        [row.name, shown(row.both, row.unit), *(cell(f, row.both, row.unit) for f in (row.edgefl_both, row.torch_both))]
        for row in rows
    ]
    return "\n\n".join(
        [
            f"MACs of one sample, k = thousand, M = million; {_versions(peers)} = is exactly the closed form's figure. Other figures "
            "have their difference in brackets. torch counts FLOPs, halved here. FedPara includes the composition of its weight once.",
            "Forward:",
            table(["", "closed form", "edgefl", "edgefl, ONNX", *(peer.name for peer in there)], forward),
            "Forward and backward pass. Layers compute the gradient of their input; whole networks do not. Only torch also counts it:",
            table(["", "closed form", "edgefl", "torch"], both),
            "\n".join(_sentence(peer, rows) for peer in there),
            *skipped,
        ]
    )


def _versions(peers: Sequence[Peer]) -> str:
    """Return the packages that took part, with versions, and those that are not there."""
    used = dict.fromkeys(peer.package for peer in (TORCH, *peers) if peer.installed)
    used |= dict.fromkeys(found.name for name in ("torchvision", "timm") for found in distributions(name=name))
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in used)
    missing = ", ".join(dict.fromkeys(peer.package for peer in peers if not peer.installed))
    return f"{versions}{f'; not installed: {missing}' if missing else ''}."


def _sentence(peer: Peer, rows: Sequence[Row]) -> str:
    pairs = [(row.peers[peer.name], row.forward) for row in rows]
    if peer is TORCH:
        pairs += [(row.torch_both, row.both) for row in rows]
    return f"- {peer.name}: {sum(found != right for found, right in pairs)} of {len(pairs)} figures differ. It {peer.misses}"


def counted() -> tuple[str, bool]:
    """Count everything: the Markdown, and whether edgefl agrees with every closed form."""
    rows = [layer_row(layer) for layer in LAYERS]
    networks = [network_row(network) for network in NETWORKS]
    rows += [row for row in networks if isinstance(row, Row)]
    wrong = [row.name for row in rows if not row.agrees]
    if wrong:
        print(f"edgefl differs from the closed form: {', '.join(wrong)}", file=sys.stderr)
    return counters_markdown(rows, [row for row in networks if isinstance(row, str)]), not wrong


def main() -> None:
    """Print the tables, write them into their page, or compare a page with them."""
    options = arguments(argparse.ArgumentParser(description="MACs by edgefl, a closed form and other counters."))
    torch.set_num_threads(1)
    body, agrees = counted()
    missing = dict.fromkeys(peer.package for peer in PEERS if not peer.installed)
    publish("counters", body, options, f" ({', '.join(missing)} not installed)" if missing else "")
    sys.exit(0 if agrees else 1)


if __name__ == "__main__":
    main()
