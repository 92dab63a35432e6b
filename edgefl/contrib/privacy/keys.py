"""The keys of differential privacy."""

from collections.abc import Iterator, Mapping
from typing import Literal

from edgefl.config.contradictions import groups_clients
from edgefl.config.field import Keys, Positive, key
from edgefl.config.group import CoreKeys, KeyGroup, group_keys
from edgefl.registry import key_group

_HEADING = "Differential privacy"


class PrivacyKeys(Keys):
    """Whom noise protects, and how much of it."""

    privacy: Literal["none", "central", "local", "example"] = key(
        "none",
        _HEADING,
        "Whom noise protects. central: every client, by the server's noise on changes within --clip-norm; local: every client, by noise of "
        "its own; example: every sample, by DP-SGD on its client.",
    )
    noise_multiplier: Positive | None = key(
        None, _HEADING, "Standard deviation of the noise over the clipping bound. [from --target-epsilon]"
    )
    target_epsilon: Positive | None = key(None, _HEADING, "Largest ε of the whole run; edgefl computes the noise for it. [none]")
    delta: float = key(1e-5, _HEADING, "δ of every ε: far below 1 over the number of clients.", gt=0, lt=1)
    privacy_clip: Positive | None = key(
        None,
        _HEADING,
        "Largest L2 norm of a contribution: with local, of a client's change; with example, of the gradient of a sample. [none]",
    )


@key_group(
    "privacy",
    after="TrustKeys",
    place=2,
    needs={
        "privacy": {
            "none": (),
            "central": ("tier_means", "received_weights", "uploads"),
            "local": ("uploads",),
            "example": ("sample_losses",),
        }
    },
    of_policies=("target_epsilon", "noise_multiplier"),
)
class PrivacyGroup(KeyGroup):
    """The keys of differential privacy."""

    keys = PrivacyKeys

    @staticmethod
    def problems(config: CoreKeys) -> Iterator[str]:
        """Yield a message for each contradiction between the keys of privacy and others."""
        yield from _problems(config, group_keys(config, PrivacyKeys))

    @staticmethod
    def fixed_rounds(config: CoreKeys) -> str:
        """Return that the noise is that of all rounds, if it follows from a target."""
        target = group_keys(config, PrivacyKeys).target_epsilon
        return "" if target is None else "with target_epsilon the noise of every round depends on their number"

    @staticmethod
    def unresolved(config: CoreKeys) -> Mapping[str, None]:
        """Return that the noise is not known yet, if it follows from a target."""
        return {} if group_keys(config, PrivacyKeys).target_epsilon is None else {"noise_multiplier": None}


def _problems(config: CoreKeys, own: PrivacyKeys) -> Iterator[str]:
    """Yield a message for each contradiction between a run's ``own`` keys of privacy and the others."""
    if own.privacy == "none":
        for name in ("noise_multiplier", "target_epsilon", "privacy_clip"):
            if getattr(own, name) is not None:
                yield f"{name}: there is no noise with privacy none; give privacy central, local or example, or leave {name} out"
        return
    if own.noise_multiplier is None and own.target_epsilon is None:
        yield f"privacy: {own.privacy} needs noise; give noise_multiplier or target_epsilon"
    if own.privacy == "central":
        yield from _central_problems(config, own)
        return
    if own.privacy_clip is None:
        what = "changes" if own.privacy == "local" else "gradients"
        yield f"privacy: noise without clipping protects nobody, because {what} may be of any length; give privacy_clip"
    if own.privacy == "local" and config.clip_norm is not None:
        yield "clip_norm: with privacy local the noise of an update is far longer than its change, and would be clipped; leave it out"
    if own.privacy == "example":
        yield from _example_problems(config)


def _central_problems(config: CoreKeys, own: PrivacyKeys) -> Iterator[str]:
    if config.clip_norm is None:
        yield "privacy: noise without clipping protects nobody, because changes may be of any length; give clip_norm"
    if own.privacy_clip is not None:
        yield "privacy_clip: with privacy central the server clips changes; give clip_norm instead"
    if getattr(config, "secure_aggregation", "off") != "off":  # a key of another group
        yield "secure_aggregation: privacy central adds noise to plain sums only; give secure_aggregation off, or privacy local"
    if config.mode == "async":
        yield "mode: privacy central adds noise to the sum of a round, and async has no rounds; give mode sync, or privacy local"
    if config.defence != "none":
        yield (
            f"defence: {config.defence} compares clients, so that one client may move the result by more than its clip; "
            "give defence none, or privacy local"
        )


def _example_problems(config: CoreKeys) -> Iterator[str]:
    if groups_clients(config):
        yield f"engine: {config.engine} trains clients together, and privacy example trains them sample by sample; use pool"
    if config.runtime == "onnx":
        yield "runtime: privacy example needs the gradient of every sample, and training graphs have those of batches; give runtime torch"
    if "recompute" in config.on_shortfall:
        yield "on_shortfall: recompute makes segments of a batch's pass, and privacy example has one pass per sample; leave it out"
