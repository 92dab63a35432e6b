"""The privacy of a run: what it promises, how its clients are drawn, and how much of ε is spent after each round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from edgefl.client.client import Clients
from edgefl.client.stage import Stage
from edgefl.client.training import Training
from edgefl.config import RunConfig
from edgefl.config.group import group_keys
from edgefl.contrib.privacy.accountant import check_installed, check_noise, epsilon, noise_for
from edgefl.contrib.privacy.central import Central, CentralNoise
from edgefl.contrib.privacy.guarantee import Privacy, Sampling
from edgefl.contrib.privacy.keys import PrivacyKeys
from edgefl.contrib.privacy.noised import Noised
from edgefl.contrib.privacy.records import PrivacyResult
from edgefl.errors import ConfigError
from edgefl.fleet.conditions import Conditions
from edgefl.methods.base import Method
from edgefl.methods.networks import skeleton
from edgefl.models.base import Architecture
from edgefl.models.norm import needs_statistics, splits_batches
from edgefl.records import Tier
from edgefl.registry import feature
from edgefl.run.feature import Feature, Json
from edgefl.run.resolved import clip_of, objective_of, outside_of, tiers_of
from edgefl.server.assignment import Plan

_OVER = 1.001  # what a target may be exceeded by: noise is rounded up, and an accountant may be of another release


@feature("privacy", figures={"epsilon": "Privacy spent, as ε"})
@dataclass(frozen=True)
class Spending(Feature):
    """How ε grows from round to round.

    Attributes:
        privacy: the promise.
        releases: how often a record contributes in a round in which its client takes part.
        sampling: how clients are drawn, if that may be counted on; None: it may not, for the reason ``unsampled``.
        adaptive: whether the server adapts its bound. ``privacy`` has its first value.
    """

    privacy: Privacy
    releases: int = 1
    sampling: Sampling | None = None
    unsampled: str = ""
    adaptive: bool = False

    @classmethod
    def of(cls, config: RunConfig, conditions: Conditions) -> Spending | None:
        """Return how a run spends ε; None without privacy."""
        return spending_of(config, conditions)

    @classmethod
    def no_devices(cls, config: RunConfig) -> str:
        """Return why devices of a run send no updates: what they send has no noise."""
        level = group_keys(config, PrivacyKeys).privacy
        return "" if level == "none" else f"the run has privacy {level}, and devices train without its clipping and noise"

    @classmethod
    def check_devices(cls, config: RunConfig, what: str) -> None:
        """Raise :class:`ConfigError` for a run with privacy: clients on devices add no noise, and nothing counts ε."""
        if (level := group_keys(config, PrivacyKeys).privacy) != "none":
            raise ConfigError(
                f"privacy: {level} is simulated only: {what} trains on devices that add no noise; give privacy none"
            )

    @classmethod
    def training(cls, config: RunConfig, training: Training) -> Training:
        """Return how clients train: gradients of samples are clipped and get noise, if it protects samples."""
        own = group_keys(config, PrivacyKeys)
        if own.privacy != "example":
            return training
        return replace(training, sample_clip=own.privacy_clip, noise_multiplier=own.noise_multiplier or 0.0)

    def resolved(self, config: RunConfig) -> RunConfig:
        """Return the configuration with the noise of its target."""
        return config.model_copy(update={"noise_multiplier": self.privacy.noise_multiplier})

    def stages(self, config: RunConfig, most: int) -> Iterator[Stage]:
        """Yield what protects updates on clients."""
        yield Noised(self.privacy.level, self.privacy.clip, self.privacy.noise_multiplier, self.privacy.delta)

    def planned(self, config: RunConfig, plan: Plan) -> Iterator[Stage]:
        """Yield the noise of the server, if it adds some."""
        if (noise := central_of(self, plan, config.per_round or 1)) is not None:
            yield CentralNoise(noise, clip_of(config))

    def check(self, config: RunConfig, method: Method, clients: Clients, conditions: Conditions) -> None:
        """Raise :class:`ConfigError` if something besides noised tensors would leave a client, or cannot be protected."""
        check_private(config, method, clients.task.architecture, tiers_of(config))

    def epsilon(self, rounds: int) -> float:
        """Return ε(δ) after so many rounds for a client that takes part in each, rounded up to four decimals."""
        spent = epsilon(self.privacy.noise_multiplier, rounds * self.releases, self.privacy.delta, self.sampling)
        return math.ceil(spent * 1e4) / 1e4

    def observed(self, round_: int) -> Json:
        """Return the figures of a round's record."""
        return {"epsilon": {"so far": self.epsilon(round_), "of one round": self.epsilon(1)}}

    def summary(self, rounds: int) -> Json:
        """Return the part of a run's summary."""
        drawn = None if self.sampling is None else self.sampling.drawn
        spent = PrivacyResult(**vars(self.privacy), epsilon=self.epsilon(rounds), drawn=drawn, unsampled=self.unsampled)
        return {"privacy": spent}

    def policy(self, rounds: int) -> Json:
        """Return ε after so many rounds, and z."""
        return {"epsilon": self.epsilon(rounds), "noise_multiplier": self.privacy.noise_multiplier}

    def warnings(self, config: RunConfig, largest: int) -> list[str]:
        """Return what a user should know about δ. The largest client has ``largest`` samples."""
        of_samples, delta = self.privacy.level == "example", self.privacy.delta
        records, what = (largest, "samples of the largest client") if of_samples else (config.clients, "clients")
        if delta < 1 / records:
            return []
        return [f"delta: {delta:g} is no less than 1 / {records}, the number of {what}; give a smaller δ"]


def spending_of(config: RunConfig, conditions: Conditions) -> Spending | None:
    """Return how a resolved configuration spends ε, with the noise of its ``target_epsilon``; None without privacy.

    Raises:
        ConfigError: dp-accounting is not installed, there is next to no noise, or the noise that was given does not meet the target that
            was given.
    """
    own = group_keys(config, PrivacyKeys)
    if own.privacy == "none":
        return None
    check_installed()
    sampling, unsampled = None, "the server sees who sends an update, so that a random choice of clients hides nobody"
    if own.privacy == "central":
        sampling, unsampled = _sampling(config, conditions)
    releases = (config.local_epochs or 1) if own.privacy == "example" else 1
    noise, target = own.noise_multiplier, own.target_epsilon
    if noise is None:
        assert target is not None  # checked with the configuration
        noise = noise_for(target, config.rounds * releases, own.delta, sampling)
    check_noise(noise)
    clip = config.clip_norm if own.privacy == "central" else own.privacy_clip
    start = config.clip_start if clip == "adaptive" else clip
    assert isinstance(start, float)  # checked with the configuration
    promise = Privacy(own.privacy, start, noise, own.delta)
    spending = Spending(promise, releases, sampling, unsampled, clip == "adaptive")
    if target is not None and (spent := spending.epsilon(config.rounds)) > target * _OVER:
        raise ConfigError(
            f"noise_multiplier: {noise:g} spends ε = {spent:g} in {config.rounds} rounds, over target_epsilon {target:g}; give one of them"
        )
    return spending


def _sampling(config: RunConfig, conditions: Conditions) -> tuple[Sampling | None, str]:
    """Return how clients are drawn for every round, or why that cannot be counted on.

    A round draws without replacement from all clients, whatever happened before. Where a session may outlast its round or drain a battery,
    who can be drawn next depends on who was drawn before. Where more clients are asked than wanted, the fast ones answer.
    """
    assert config.per_round is not None  # resolved
    if config.sampler != "uniform":
        return None, f"sampler {config.sampler} decides who takes part; with uniform the random choice counts"
    random = replace(conditions, drop_out=0.0, interrupted=0.0, start_hour=0.0)
    if random != Conditions() or "send" in config.on_shortfall:
        reason = "availability, batteries, deadlines or over-selection decide who takes part besides chance"
        return None, f"{reason}; with conditions ideal and over_selection 1 the random choice counts"
    return Sampling(config.clients, config.per_round), ""


def central_of(spending: Spending | None, plan: Plan, per_round: int) -> Central | None:
    """Return the noise that the server adds in every round; None if it adds none. Each tier's part of a round is public and fixed."""
    if spending is None or spending.privacy.level != "central":
        return None
    clients = {tier: max(1, round(per_round * share)) for tier, share in plan.shares().items()}
    return Central(spending.privacy.noise_multiplier, clients, spending.adaptive)


def check_private(config: RunConfig, method: Method, architecture: Architecture, tiers: tuple[Tier, ...]) -> None:
    """Raise :class:`ConfigError` if something besides noised tensors would leave a client, or if single samples have no gradients."""
    level = group_keys(config, PrivacyKeys).privacy
    if level == "none":
        return
    objective = objective_of(config)
    if level == "central" and (objective.remembers or objective.controls):
        raise ConfigError(
            f"objective: {config.objective} adds up what clients send without noise; with privacy central give none or prox"
        )
    after = ("admit", "folded", "counts", "together", "summed")
    for stage in outside_of(config) if level == "central" else ():
        if changes := [moment for moment in after if stage.writes(moment)]:
            why = f"central bounds what a client changes, and stages: {stage.name} has {changes[0]} after that"
            raise ConfigError(f"privacy: {why}; leave it out")
    who = type(method).title
    for tier in tiers:
        network = skeleton(method, architecture, tier)
        if level == "example" and not splits_batches(network):
            why = "needs the gradient of every sample, and BatchNorm mixes the samples of a batch"
        elif layer := _measures(network):
            why = f"does not cover the statistics of samples that {layer} collects from clients"
        else:
            continue
        raise ConfigError(f"privacy: {level} {why} (tier {tier.label} of {who}); give norm group, layer or none")


def _measures(network: nn.Module) -> str:
    """Return the kind of the layers of ``network`` that have statistics of samples, "" if none has."""
    if needs_statistics(network) or any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in network.modules()):
        return "BatchNorm"
    measuring = (layer for layer in network.modules() if getattr(layer, "track_running_stats", False))
    return next((type(layer).__name__ for layer in measuring), "")
