"""The Python client called in this process, and what its tests train."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import edgefl_client  # type: ignore[import-not-found]
import numpy as np
import pytest
from edgefl_client import Training, read_bundle, train
from edgefl_order import Order  # type: ignore[import-not-found]
from handmade import Regression, samples

DEFAULT = Training()


Capture = pytest.CaptureFixture[str]


def ended(main: Callable[[list[str]], int], capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    """Call a command's main function, and return exit status, standard output and standard error."""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as left:  # argparse's own
        status = int(left.code or 0)
    return (status, *capsys.readouterr())


def ran(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    """Call the client's command line."""
    return ended(edgefl_client.main, capsys, *arguments)


def called(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    """Call the client's command line on a bundle that is not signed."""
    return ran(capsys, *arguments, *unsigned(arguments))


def unsigned(arguments: tuple[object, ...]) -> list[str]:
    """Return the option that such a command needs."""
    return ["--allow-unsigned"] if arguments[0] in ("infer", "train") and "--key" not in arguments else []


def header(path: Path) -> dict[str, str]:
    """Return what a state or an update says of itself."""
    content = path.read_bytes()
    about: dict[str, str] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    return about


def batches(how: Training, n: int) -> list[np.ndarray]:
    """Return the indices of the samples of each step."""
    order = Order(n, how.batch_size, how.seed or 0)
    return [order.batch() for _ in range(how.steps(n))]


def played(model: Regression, folder: Path, state: Any = None, n: int = 10, how: Training = DEFAULT, **reference: Any) -> Any:
    """Train on n samples and return the state, what NumPy makes of the same batches, and NumPy's losses."""
    x, y = samples(n, model.shape, model.classes)
    loaded = read_bundle(folder)
    after = train(loaded, "0.5", x, y, how, state)
    settled = replace(how, epochs=how.epochs or 2, batch_size=how.batch_size or 4)
    return after, *model.trained([(x[index], y[index]) for index in batches(settled, n)], **reference)


def same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Check that tensors are those that NumPy worked out."""
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=2e-4, atol=2e-5, err_msg=name)
