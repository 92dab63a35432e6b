"""Which choices of a run combine with which methods. A choice lists the capabilities it needs, a method those it lacks, with reasons.

An axis is a key of a run's configuration, such as ``codec``. Objectives, server optimizers and codecs declare their needs in the registry,
beside their names. The needs of the other axes are in :data:`FIXED`.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from edgefl.errors import ConfigError, nearest
from edgefl.registry import OF_FEATURES, codecs, defences, key_groups, objectives, server_optimizers

Need = Literal[
    "received_weights", "fixed_coordinates", "common_model", "rounds", "plain_sgd", "server_step", "uploads", "changing_tiers",
    "stale_updates", "own_loss", "shared_coordinates", "tier_sums", "tier_means", "sample_losses", "labels", "images", "common_labels",
    "weighed_samples", "fresh_momentum",
]  # fmt: skip
"""A capability that a choice may need of a method or of the rest of a run.

Of the method:

- ``received_weights``: clients begin a round with weights from the server.
- ``fixed_coordinates``: a client's tensors stand for the same weights in every round.
- ``common_model``: all clients train towards one model.
- ``server_step``: the server moves its weights to their aggregate, so that a server optimizer may scale this step.
- ``uploads``: clients send tensors.
- ``changing_tiers``: a client may have another tier in every round.
- ``stale_updates``: an update still fits the server's state after further steps of the server.
- ``own_loss``: clients may minimise any loss.
- ``shared_coordinates``: if two clients send the same tensor, or the same entries of a tensor, these stand for the same weights.
- ``tier_sums``: the server needs only the sum of each tier's updates (:func:`edgefl.methods.tier_sum.folds`).
- ``tier_means``: all clients of a tier receive the same tensors, and the mean of their updates is an update of that tier.
- ``sample_losses``: a client uses its samples only through a loss that is a mean over them.
- ``weighed_samples``: a client that has more samples weighs more.
- ``fresh_momentum``: clients begin every round without momentum.

Of the run:

- ``rounds``: the server steps once per synchronous round.
- ``plain_sgd``: clients take plain SGD steps.

Of the data set:

- ``labels``: samples have labels, not targets of a regression.
- ``images``: a sample is one image.
- ``common_labels``: a label means the same to all clients.
"""

REGISTRIES = {
    "objective": objectives, "server_optimizer": server_optimizers, "codec": codecs, "defence": defences,
    **{kind.kind: kind for kind in OF_FEATURES},
}  # fmt: skip
CLIPPED: tuple[Need, ...] = ("received_weights", "uploads")
"""The needs of clipping, which limits a client's change: the tensors that it sent minus those that it received."""
FIXED: dict[str, dict[str, tuple[Need, ...]]] = {
    "tier_assignment": {"auto": (), "uniform": (), "dynamic": ("changing_tiers",)},
    "mode": {"sync": (), "async": ("stale_updates",)},
    "optimizer": {"momentum": (), "sgd": ("fresh_momentum",), "adam": ("fresh_momentum",)},
    "runtime": {"torch": (), "onnx": ("fresh_momentum",)},
    **{key: choices for needs in key_groups.each("needs") for key, choices in needs.items()},
}
"""Axis → choice → needs, of the axes without a registry; those of features are at their keys."""
AXES = (*REGISTRIES, *FIXED)
"""All axes."""


def choices(key: str) -> list[str]:
    """Return the choices of an axis.

    >>> choices("codec")
    ['fp16', 'fp32', 'int8', 'sparse']
    """
    return REGISTRIES[key].names() if key in REGISTRIES else list(FIXED[key])


def needs(key: str, choice: str) -> tuple[Need, ...]:
    """Return the needs of a choice. No module of the package is imported.

    Raises:
        UnknownNameError: the registry of the axis ``key`` has no such choice.
        ConfigError: the choice declares a need that is no :data:`Need`.

    >>> needs("codec", "int8"), needs("mode", "sync")
    (('uploads',), ())
    """
    if key in FIXED:
        return FIXED[key][choice]
    declared: tuple[Need, ...] = REGISTRIES[key].facts(choice).get("needs", ())
    if unknown := sorted(set(declared) - {*get_args(Need)}):
        raise ConfigError(
            f"{key} {choice!r} needs {unknown[0]!r};{nearest(unknown[0], get_args(Need))} known: {', '.join(get_args(Need))}"
        )
    return declared


def conflict(lacks: Mapping[Need, str], key: str, choice: str) -> str:
    """Return why a choice cannot be combined with a method; "" if it can. ``lacks``: capability → why the method lacks it.

    >>> conflict({"uploads": "nothing travels"}, "codec", "fp16"), conflict({"uploads": "nothing travels"}, "codec", "fp32")
    ('nothing travels', '')
    """
    return next((lacks[need] for need in needs(key, choice) if need in lacks), "")


def refused(lacks: Mapping[Need, str], keys: Iterable[str] = AXES) -> dict[str, str]:
    """Return choice → reason, for all choices of the axes ``keys`` that :func:`conflict` with a method that ``lacks`` capabilities."""
    return {choice: reason for key in keys for choice in choices(key) if (reason := conflict(lacks, key, choice))}
