"""Set edgefl's predicted memory of a training step and of an inference beside what torch's allocator and onnxruntime measure.

A page of docs/ holds the table between ``<!-- memory:begin -->`` and ``<!-- memory:end -->``, made from ``tools/results/memory.jsonl``.
Networks of timm and transformers keep their stored figures where these libraries are not installed.

Usage: python tools/compare_memory.py [--measure | --predict] [--only PART] [--check | --write] [--page FILE]
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version

import torch
from counters.markdown import arguments, publish
from memory.measure import inference_bytes, installed, predicted, trained_bytes
from memory.network import Network
from memory.networks import NETWORKS
from memory.rows import Row, markdown, read, write

from edgefl.errors import EdgeflError
from edgefl.util.compute import one_thread
from edgefl.util.machine import processor_name


def measured(network: Network) -> Row:
    """Predict and measure a network; a network that cannot be exported has no measured inference."""
    with one_thread():
        training, inference = predicted(network)
        try:
            ran = inference_bytes(network)
        except EdgeflError as error:
            print(f"{network.name}: {error}", file=sys.stderr)
            ran = None
        versions = f"torch {torch.__version__.partition('+')[0]}, onnxruntime {version('onnxruntime')}"
        figures = (training, trained_bytes(network)), (inference, ran)
        return Row(network.name, network.batch_size, network.held_out, *figures, versions, processor_name())


def predicted_again(network: Network, row: Row) -> Row:
    """Return ``row`` with what is predicted now."""
    with one_thread():
        training, inference = predicted(network)
    return Row(**vars(row) | {"training": (training, row.training[1]), "inference": (inference, row.inference[1])})


def main() -> None:
    """Print the table, write it into its page, or compare its page with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--measure", action="store_true", help="predict and measure the networks, and store the figures (minutes)"
    )
    action.add_argument("--predict", action="store_true", help="predict the stored networks again, and store the figures")
    parser.add_argument("--only", default="", metavar="PART", help="only networks with this in their names [all]")
    options = arguments(parser)
    if options.measure or options.predict:
        rows = read()
        for network in NETWORKS:
            if options.only not in network.name or not installed(network):
                continue
            if options.measure:
                rows[network.name] = measured(network)
            elif network.name in rows:
                rows[network.name] = predicted_again(network, rows[network.name])
            write([rows[network.name] for network in NETWORKS if network.name in rows])
    publish("memory", memory_markdown(), options)


def memory_markdown() -> str:
    """Return the table of the stored figures."""
    return markdown(list(read().values()))


if __name__ == "__main__":
    main()
