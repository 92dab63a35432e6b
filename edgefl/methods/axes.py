"""The axes of a run that combine with methods, compared by capability: a choice says what it needs, a method what it lacks, and why.

Objectives, server optimizers and codecs declare ``needs`` beside their names in the registry. The choices of the other axes are here.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from edgefl.registry import codecs, objectives, server_optimizers

Need = Literal[
    "received_weights", "fixed_coordinates", "common_model", "rounds", "plain_sgd", "server_step", "uploads", "changing_tiers",
    "stale_updates",
]  # fmt: skip
"""What a choice may need of a method or of the rest of a run.

``received_weights``: clients begin a round with weights that the server sent. ``fixed_coordinates``: a client's tensors stand for the same
weights in every round. ``common_model``: all clients train towards one model. ``rounds``: the server steps once everybody has answered.
``plain_sgd``: clients take plain SGD steps. ``server_step``: the server moves from its weights to their aggregate, and may take another
step instead. ``uploads``: clients send tensors. ``changing_tiers``: a client may have another tier in every round. ``stale_updates``: an
update still fits the server's state after the server has stepped.
"""

REGISTRIES = {"objective": objectives, "server_optimizer": server_optimizers, "codec": codecs}
FIXED: dict[str, dict[str, tuple[Need, ...]]] = {
    "tier_assignment": {"auto": (), "uniform": (), "dynamic": ("changing_tiers",)},
    "mode": {"sync": (), "async": ("stale_updates",)},
}
"""Key of a run's configuration → choice → needs."""
AXES = (*REGISTRIES, *FIXED)
"""The keys of a run's configuration that combine with methods."""


def choices(key: str) -> list[str]:
    """Return the choices of an axis.

    >>> choices("codec")
    ['fp16', 'fp32', 'int8', 'sparse']
    """
    return REGISTRIES[key].names() if key in REGISTRIES else list(FIXED[key])


def needs(key: str, choice: str) -> tuple[Need, ...]:
    """Return what a choice needs, or raise :class:`UnknownNameError`; nothing is imported for it.

    >>> needs("codec", "int8"), needs("mode", "sync")
    (('uploads',), ())
    """
    return FIXED[key][choice] if key in FIXED else REGISTRIES[key].facts(choice).get("needs", ())


def conflict(lacks: Mapping[Need, str], key: str, choice: str) -> str:
    """Return why a choice makes no sense where ``lacks`` is missing, or nothing.

    >>> conflict({"uploads": "nothing travels"}, "codec", "fp16"), conflict({"uploads": "nothing travels"}, "codec", "fp32")
    ('nothing travels', '')
    """
    return next((lacks[need] for need in needs(key, choice) if need in lacks), "")


def refused(lacks: Mapping[Need, str], keys: Iterable[str] = AXES) -> dict[str, str]:
    """Return choice → reason, of all choices of the axes ``keys`` that make no sense where ``lacks`` is missing."""
    reasons = {choice: conflict(lacks, key, choice) for key in keys for choice in choices(key)}
    return {choice: reason for choice, reason in reasons.items() if reason}
