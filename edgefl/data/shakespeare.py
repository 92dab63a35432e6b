"""Shakespeare's plays, as LEAF sets them up: the next character in the text of a speaking role (Caldas et al. 2018)."""

from __future__ import annotations

import re

import numpy as np

from edgefl.data.plays import SOURCE, plays
from edgefl.data.sources import Dataset, Split
from edgefl.errors import DataError
from edgefl.registry import dataset

ALPHABET = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's 80 characters, in its order
)
WINDOW = 80
STRIDE = 20
TRAIN_SHARE = 0.8
SHORTEST = 5 * WINDOW + 1  # characters of a role whose last fifth holds a window and a character that follows it
_NAMES = {"\n": "newline", " ": "space"}
_OUTSIDE = re.compile(f"[^{re.escape(ALPHABET)}]|\\s")


@dataset("shakespeare", owners="speaking roles")
def shakespeare(data_dir: str | None = None) -> Dataset:
    """Return windows of 80 characters as ids, each labelled with the character that follows; every speaking role is an owner.

    White space and characters outside the alphabet become one space. The first 80 % of a role's text are for training, the rest is held
    out; no window reaches from one into the other. Roles of less than 401 characters are left out. ``data_dir`` is the source distribution
    of ``shakespeare`` 0.6, or a folder with it or with its texts; None takes the installed package. DataError if texts are absent.

    Differs from LEAF: a window starts every 20th character instead of every one (4 million windows would take 2.5 GB), and the editions of
    the plays have other role names, so the roles are not LEAF's 1,129.
    """
    pieces: list[list[np.ndarray]] = [[], []]
    for _, said in plays(data_dir):
        for text in said.values():
            ids = encoded(text)
            if len(ids) >= SHORTEST:
                cut = int(len(ids) * TRAIN_SHARE)
                pieces[0].append(ids[:cut])
                pieces[1].append(ids[cut:])
    if not pieces[0]:
        raise DataError(f"{data_dir or 'shakespeare'}: no speaking role with {SHORTEST} characters, expected plays of {SOURCE}")
    (train, train_owner), (test, test_owner) = windows(pieces[0]), windows(pieces[1])
    return Dataset(
        name="shakespeare",
        title="Shakespeare's plays, next character, by speaking role",
        train=train,
        test=test,
        class_names=tuple(_NAMES.get(character, character) for character in ALPHABET),
        preprocessing={
            "alphabet": ALPHABET,
            "window": WINDOW,
            "ids": "places in the alphabet; white space and characters outside it are one space",
        },
        default_model="lstm-shakespeare",
        vocabulary=len(ALPHABET),
        train_owner=train_owner,
        test_owner=test_owner,
    )


def encoded(text: str) -> np.ndarray:
    r"""Return ``text`` as places in the alphabet, int64 (characters,), runs of spaces being one.

    >>> encoded("A\n  {b").tolist() == [ALPHABET.index(character) for character in "A b"]
    True
    """
    plain = re.sub(" +", " ", _OUTSIDE.sub(" ", text)).strip()
    return _TABLE[np.frombuffer(plain.encode("ascii"), np.uint8)]


def windows(pieces: list[np.ndarray]) -> tuple[Split, np.ndarray]:
    """Return every 20th window of each of ``pieces`` with the id that follows it, and the number of its piece, int64 (n,).

    >>> split, piece = windows([np.arange(121), np.arange(200, 300)])
    >>> split.x.shape, split.y.tolist(), piece.tolist()
    ((4, 80), [80, 100, 120, 280], [0, 0, 0, 1])
    """
    text = np.concatenate(pieces)
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = [np.arange(end - len(piece), end - WINDOW, STRIDE) for piece, end in zip(pieces, ends, strict=True)]
    start = np.concatenate(starts)
    x = np.lib.stride_tricks.sliding_window_view(text, WINDOW)[start]  # a view until it is indexed: one copy in all
    return Split(x, text[start + WINDOW]), np.repeat(np.arange(len(pieces)), [len(own) for own in starts])


_TABLE = np.zeros(128, np.int64)
_TABLE[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
