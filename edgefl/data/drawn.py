"""Random samples in the place of data: what a network takes and returns is all that is known of them.

Their name says it all, so that nothing is stored: ``drawn:3x8x8;labels=4``, ``drawn:ids=int64:5<9,mask=int64:5<2;labels=3``, or, with a
loss of the user's own, ``drawn:8x8;targets=8x8``.
"""

import json
import re
from typing import Any

import numpy as np

from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import DataError
from edgefl.records import Preparation
from edgefl.rng import generator
from edgefl.util.datasets import DRAWN
from edgefl.util.fields import Fields, each, named

_SAMPLES = 2
_INPUT = re.compile(r"(?:(?P<name>[^=:,;]+)=)?(?:int64:)?(?P<shape>\d+(?:x\d+)*)(?:<(?P<below>\d+))?")
_OUTPUT = re.compile(r"labels=(?P<labels>\d+)|targets=(?P<targets>\d+(?:x\d+)*)")


def name_of(samples: Fields[np.ndarray], labels: int, targets: tuple[int, ...] | None = None) -> str:
    """Return the name of random samples like ``samples`` (n, …), whose ids are below the largest, with ``labels`` or ``targets``.

    >>> name_of({"ids": np.array([[0, 8]]), "x": np.ones((1, 3), np.float32)}, 2), name_of(np.ones((1, 4), np.float32), 0, (2, 2))
    ('drawn:ids=int64:2<9,x=3;labels=2', 'drawn:4;targets=2x2')
    """

    def one(x: np.ndarray) -> str:
        shape = _text(x.shape[1:])
        return shape if x.dtype == np.float32 else f"int64:{shape}<{int(x.max()) + 1}"

    inputs = {name.removeprefix("x").removeprefix("."): one(x) for name, x in named(samples, "x").items()}
    output = f"labels={labels}" if targets is None else f"targets={_text(targets)}"
    return f"{DRAWN}{','.join(f'{name}={text}' if name else text for name, text in inputs.items())};{output}"


def load(name: str, preprocessing: str = "") -> Dataset:
    """Return the random samples of a ``name``; devices prepare raw ones as the JSON text ``preprocessing`` says, else use them as they are.

    DataError: it is no such name.

    >>> data = load("drawn:ids=int64:2<9,x=3;labels=2")
    >>> data.input_shape, data.vocabulary, data.class_names, data.drawn
    ({'ids': (2,), 'x': (3,)}, {'ids': 9, 'x': 0}, ('0', '1'), True)
    """
    inputs, _, output = name.removeprefix(DRAWN).partition(";")
    matches, said = [_INPUT.fullmatch(text) for text in inputs.split(",")], _OUTPUT.fullmatch(output)
    if said is None or any(match is None for match in matches):
        raise DataError(f"dataset: got {name!r}, expected the form {DRAWN}3x8x8;labels=4")
    rng = generator(0, "drawn samples")
    fields = {match["name"] or "": match for match in matches if match is not None}
    x: Any = {key: _samples(match, rng) for key, match in fields.items()}
    below: Any = {key: int(match["below"] or 0) for key, match in fields.items()}
    if list(fields) == [""]:
        x, below = x[""], below[""]
    figures = json.loads(preprocessing or "null")
    how = figures and each(lambda ids: {} if ids else {**figures, "raw": "float32"}, below)
    labels, targets = int(said["labels"] or 0), said["targets"]
    y = np.arange(_SAMPLES) % max(labels, 1) if labels else rng.random((_SAMPLES, *_shape(targets)), np.float32)
    return of_samples(Split(x, y), below, tuple(map(str, range(labels))), how)


def of_samples(split: Split, below: Fields[int], class_names: tuple[str, ...], preprocessing: Preparation | None) -> Dataset:
    """Return the data set of samples that nothing is evaluated on; their ids are ``below`` a number, 0 for real numbers."""
    plain = each(lambda ids: {} if ids else {"scale": 1.0, "mean": 0.0, "std": 1.0}, below)
    how = dict(plain if preprocessing is None else preprocessing)
    return Dataset("none", "No data", split, split, class_names, how, "", vocabulary=below, drawn=True)


def _samples(match: re.Match[str], rng: np.random.Generator) -> np.ndarray:
    """Return normal samples, or the smallest and the largest ids; a mask, with ids below 2, begins with 1: no sample is empty."""
    shape = _SAMPLES, *_shape(match["shape"])
    if match["below"] is None:
        return rng.standard_normal(shape).astype(np.float32)
    ids = np.zeros(shape, np.int64)
    ids[-1] = max(int(match["below"]), 1) - 1
    if match["below"] == "2" and match["name"]:
        ids[..., 0] = 1
    return ids


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
