"""The metrics of predicted classes that a run may name."""

from collections.abc import Callable

import numpy as np


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of samples whose ``predicted`` class (n,) is their label, in [0, 1]."""
    return float((predicted == labels).mean())


def macro_f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean over classes of F1 = 2·TP/(2·TP + FP + FN), in [0, 1], for the classes among ``labels`` or ``predicted``, (n,).

    >>> macro_f1(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]))  # of the classes: 2/3 and 4/5
    0.7333333333333334
    """
    right, labelled, guessed = _counts(predicted, labels)
    of_class = labelled + guessed > 0
    return float((2 * right[of_class] / (labelled + guessed)[of_class]).mean())


def balanced_accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean over the classes among ``labels`` (n,) of the share of their samples that are ``predicted``, in [0, 1].

    >>> balanced_accuracy(np.array([0, 1, 1, 1]), np.array([0, 0, 0, 1]))  # of the classes: 1/3 and 1
    0.6666666666666666
    """
    right, labelled, _ = _counts(predicted, labels)
    return float((right[labelled > 0] / labelled[labelled > 0]).mean())


def _counts(predicted: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by class how many samples are predicted rightly, have it as their label, and are predicted, each (classes,)."""
    classes = int(max(predicted.max(), labels.max())) + 1
    right, labelled, guessed = (np.bincount(each, minlength=classes) for each in (labels[predicted == labels], labels, predicted))
    return right, labelled, guessed


OF_CLASSES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "macro-f1": macro_f1,
    "balanced-accuracy": balanced_accuracy,
    "worst-client": accuracy,  # of the samples of one client; the run takes the least
}
"""Name in :data:`edgefl.records.metric.METRICS` → what it measures of one model on some samples."""
