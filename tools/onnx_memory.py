"""Set the predicted memory of a training step in onnxruntime beside what onnxruntime reports.

A page of docs/ holds the table between ``<!-- onnx-memory:begin -->`` and its end. Each network takes one step of 32 samples.

Usage: python tools/onnx_memory.py [--check | --write] [--page FILE]
"""

from __future__ import annotations

import argparse

import onnxruntime as ort
from counters.markdown import arguments, percent, publish, table
from onnx_steps import SUBJECTS, Pair, Subject

from edgefl.util.compute import one_thread

OTHERS = (
    *(Subject(model) for model in ("cnn-digits", "cnn-tiny", "cnn-5x5", "cnn-femnist", "vgg11", "deit-tiny")),
    *(Subject(model) for model in ("lstm-shakespeare", "lstm-imdb")),
    Subject("cnn-fashion", "heterofl", 0.5),
    Subject("cnn-fashion", "fjord", 0.5),
)


def memory_markdown(found: dict[str, tuple[int, int]]) -> str:
    """Return the summary and the table: network → predicted and measured bytes.

    >>> print(memory_markdown({"mlp": (98, 100)}).splitlines()[0])
    1 networks from −2.0 % (mlp) to −2.0 % (mlp). MB of a step of 32 samples, one thread, momentum SGD; onnxruntime 1.31.1.
    """
    errors = sorted((predicted / measured - 1, name) for name, (predicted, measured) in found.items())
    least, most = (f"{percent(error)} ({name})" for error, name in (errors[0], errors[-1]))
    about = f"{len(found)} networks from {least} to {most}. MB of a step of 32 samples, one thread, momentum SGD; "
    rows = [[name, f"{p / 1e6:,.2f}", f"{m / 1e6:,.2f}", percent(p / m - 1)] for name, (p, m) in found.items()]
    return f"{about}onnxruntime {ort.__version__}.\n\n{table(['network', 'predicted', 'measured', 'error'], rows)}"


def main() -> None:
    """Predict, measure, and print the table or write it into its page."""
    options = arguments(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    with one_thread():
        found = {subject.title: Pair(subject).memory() for subject in (*SUBJECTS, *OTHERS)}
    publish("onnx-memory", memory_markdown(found), options)


if __name__ == "__main__":
    main()
