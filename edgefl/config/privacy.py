"""Keys of differential privacy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from edgefl.config.field import Keys, Positive, key

if TYPE_CHECKING:
    from edgefl.config.run_config import RunConfig

PRIVACY = "Differential privacy"
"""Heading of these keys in the command line's help."""


class PrivacyKeys(Keys):
    """Keys of differential privacy."""

    privacy: Literal["none", "central", "local", "example"] = key(
        "none",
        PRIVACY,
        "Whom noise protects. central: every client, by the server's noise on changes within --clip-norm; local: every client, by noise of "
        "its own; example: every sample, by DP-SGD on its client.",
    )
    noise_multiplier: Positive | None = key(
        None, PRIVACY, "Standard deviation of the noise over the clipping bound. [from --target-epsilon]"
    )
    target_epsilon: Positive | None = key(None, PRIVACY, "Largest ε of the whole run; edgefl computes the noise for it. [none]")
    delta: float = key(1e-5, PRIVACY, "δ of every ε: far below 1 over the number of clients.", gt=0, lt=1)
    privacy_clip: Positive | None = key(
        None,
        PRIVACY,
        "Largest L2 norm of a contribution: with local, of a client's change; with example, of the gradient of a sample. [none]",
    )


def privacy_problems(config: RunConfig) -> Iterator[str]:
    """Yield a message for each contradiction between the keys of privacy and others."""
    if config.privacy == "none":
        for name in ("noise_multiplier", "target_epsilon", "privacy_clip"):
            if getattr(config, name) is not None:
                yield f"{name}: there is no noise with privacy none; give privacy central, local or example, or leave {name} out"
        return
    if config.noise_multiplier is None and config.target_epsilon is None:
        yield f"privacy: {config.privacy} needs noise; give noise_multiplier or target_epsilon"
    if config.privacy == "central":
        yield from _central_problems(config)
        return
    if config.privacy_clip is None:
        what = "changes" if config.privacy == "local" else "gradients"
        yield f"privacy: noise without clipping protects nobody, because {what} may be of any length; give privacy_clip"
    if config.privacy == "local" and config.clip_norm is not None:
        yield "clip_norm: with privacy local the noise of an update is far longer than its change, and would be clipped; leave it out"
    if config.privacy == "example":
        yield from _example_problems(config)


def _central_problems(config: RunConfig) -> Iterator[str]:
    if config.clip_norm is None:
        yield "privacy: noise without clipping protects nobody, because changes may be of any length; give clip_norm"
    if config.privacy_clip is not None:
        yield "privacy_clip: with privacy central the server clips changes; give clip_norm instead"
    if config.secure is not None:
        yield ("secure_aggregation: privacy central adds noise to plain sums only; give secure_aggregation off, or privacy local")
    if config.mode == "async":
        yield "mode: privacy central adds noise to the sum of a round, and async has no rounds; give mode sync, or privacy local"
    if config.defence != "none":
        yield (
            f"defence: {config.defence} compares clients, so that one client may move the result by more than its clip; "
            "give defence none, or privacy local"
        )


def _example_problems(config: RunConfig) -> Iterator[str]:
    if config.runtime == "onnx":
        yield "runtime: privacy example needs the gradient of every sample, and training graphs have those of batches; give runtime torch"
    if "recompute" in config.on_shortfall:
        yield "on_shortfall: recompute makes segments of a batch's pass, and privacy example has one pass per sample; leave it out"
