"""Texts as ids of their most frequent words, as recurrent networks for film reviews take them."""

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words_of(text: str) -> list[str]:
    """Return the words of a text in small letters, without markup.

    >>> words_of("It's<br />GOOD, really")
    ["it's", 'good', 'really']
    """
    return _WORD.findall(re.sub(r"<[^>]*>", " ", text).lower())


def vocabulary_of(texts: Iterable[str], most: int) -> tuple[str, ...]:
    """Return the ``most`` frequent words, of equally frequent ones the first in the alphabet; a word's id is its place, from 1."""
    counts = Counter(word for text in texts for word in words_of(text))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:most])


def ids_of(texts: Iterable[str], vocabulary: tuple[str, ...], window: int) -> np.ndarray:
    """Return the last ``window`` known words of each text as ids, (n, window) int64; 0 pads in front.

    >>> ids_of(["a good film", "good"], ("film", "good"), 3).tolist()
    [[0, 2, 1], [0, 0, 2]]
    """
    place = {word: number for number, word in enumerate(vocabulary, 1)}
    rows = [[place[word] for word in words_of(text) if word in place][-window:] for text in texts]
    return np.array([[0] * (window - len(row)) + row for row in rows], np.int64).reshape(-1, window)
