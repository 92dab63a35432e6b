"""What a configuration must not combine: checks of a method, the data and the host against the other keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from edgefl.bundle.manifest_records import preparation
from edgefl.config import RunConfig
from edgefl.data.sources import Dataset
from edgefl.engine.contract import is_remote
from edgefl.errors import ConfigError, EdgeflError
from edgefl.methods.axes import AXES, CLIPPED, conflict
from edgefl.methods.base import Method
from edgefl.methods.tier_sum import gaps
from edgefl.models.base import Architecture
from edgefl.plugins import only_here
from edgefl.registry import OF_FEATURES, methods, stages
from edgefl.run.resolved import chain_of, outside_of
from edgefl.server.sampler import sampler_of
from edgefl.util.datasets import is_own as is_own_data
from edgefl.util.fields import Fields
from edgefl.util.modules import OBJECT
from edgefl.util.networks import title_of

if TYPE_CHECKING:
    from edgefl.run.run import Run

_OF_FEATURES = {kind.kind for kind in OF_FEATURES}


def check_device(config: RunConfig) -> None:
    """Raise :class:`ConfigError` if clients cannot train on the run's device, or torch does not find it."""
    if config.device == "cuda" and (config.enforce == "hard" or config.runtime == "onnx"):
        remedy = "give runtime torch, and enforce meter or plan"
        raise ConfigError(f"device: cuda trains in torch, and holds no client to a limit; {remedy}")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda, but torch finds no CUDA device here; use cpu, or install torch with CUDA and its driver")


def check_reach(config: RunConfig) -> None:
    """Raise :class:`ConfigError` if clients train in other processes, which cannot import a plug-in of the run."""
    elsewhere = config.workers != 1 or config.enforce == "hard" or config.engine in ("pool", "auto") or is_remote(config.engine)
    if elsewhere and (local := only_here(config.plugins)):
        raise ConfigError(
            f"plugins: {', '.join(local)} was defined in a notebook or at a prompt, and worker processes cannot import it; put it into a "
            "file and give it as a plug-in, or use engine inline with one worker, and enforce meter or plan"
        )


def check_networks(method: Method, config: RunConfig) -> None:
    """Raise :class:`ConfigError` if tiers have networks of their own, and ``method`` makes all of them from one."""
    if config.tier is None or method.unlike_networks:
        return
    able = ", ".join(name for name in methods.names() if methods.load(name).unlike_networks)
    raise ConfigError(
        f"tier: {type(method).title} makes the networks of all tiers from one; give --model and --tiers, or a method that trains different "
        f"networks: {able}"
    )


def check_axes(method: Method, config: RunConfig) -> None:
    """Raise :class:`ConfigError` where ``method`` makes no sense with one of the other axes of ``config``."""
    name, lacking = type(method).title, gaps(method)
    for key in AXES:
        if (chosen := getattr(config, key)) is None:
            continue
        choice = chosen.partition("(")[0].partition(":")[0]  # some have parameters
        if key not in _OF_FEATURES and (reason := conflict(lacking, key, choice)):  # those need something of the data, too
            raise ConfigError(f"{key}: {choice} makes no sense with {name}: {reason}")
    if config.loss is not None and (why := method.lacks.get("own_loss")):
        raise ConfigError(f"loss: {title_of(config.loss)} makes no sense with {name}: {why}")
    if config.metric == "worst-client" and (method.personalised or config.permute_labels):
        whose = "labels of their own" if config.permute_labels else f"models of their own with {name}"
        raise ConfigError(
            f"metric: worst-client judges one model by every client, and clients have {whose}; leave it out: the report has the accuracy "
            "of every client"
        )
    if config.clip_norm is not None and (why := next((method.lacks[need] for need in CLIPPED if need in method.lacks), "")):
        raise ConfigError(f"clip_norm: makes no sense with {name}: {why}")
    chain_of(config)  # checks the strength of the defence
    for key, usual in (("server_lr", (None, 1.0)), ("server_lr_schedule", ("constant",))):
        if (given := getattr(config, key)) not in usual and "server_step" in method.lacks:
            raise ConfigError(f"{key}: {given} makes no sense with {name}: {method.lacks['server_step']}")


def check_stages(method: Method, config: RunConfig) -> None:
    """Raise :class:`ConfigError` where a stage of a plug-in makes no sense with ``method`` or with other keys, by what it needs."""
    sampler_of(config.sampler)  # checks its options
    lacking = gaps(method)
    for stage in outside_of(config):
        title, wanted = f"stages: {stage.name}", stages.facts(stage.name).get("needs", ())
        if reason := next((lacking[need] for need in wanted if need in lacking), ""):
            raise ConfigError(f"{title} makes no sense with {type(method).title}: {reason}")
        if config.mode == "async" and (stage.writes("together") or stage.sums):
            raise ConfigError(f"{title} reads all updates of a round, and mode async has no rounds; give mode sync")
        if config.tier_assignment == "dynamic" and stage.writes("first_memory"):
            raise ConfigError(
                f"{title} stores tensors on clients, whose tiers change from round to round; give tier_assignment uniform"
            )


def check_described(data: Dataset) -> None:
    """Raise :class:`ConfigError` if a bundle or a report cannot say what a plug-in's data set says of itself."""
    if odd := [name for name in data.class_names if not isinstance(name, str)]:
        raise ConfigError(f"dataset {data.name}: class_names: got {odd[0]!r}, expected texts")
    check_preparation(f"dataset {data.name}: ", data.preprocessing, data.input_shape)


def check_prepared(config: RunConfig, data: Dataset) -> None:
    """Raise :class:`ConfigError` if nobody has said how a user's data are prepared for given weights."""
    chosen = config.preprocessing is not None or config.weights is None or config.sources is not None
    if chosen or data.drawn or not is_own_data(config.dataset) or config.dataset.startswith(OBJECT):
        return
    if any("std" in how for how in (data.preprocessing, *data.preprocessing.values()) if isinstance(how, Mapping)):
        choice = "none: as they are; FILE: JSON with scale, mean and std; from-weights: as the file of weights says"
        own = (
            f"{data.name} would be normalised by its own mean and deviation, which may not be what the weights were trained with"
        )
        raise ConfigError(f"preprocessing: {own}; give --preprocessing ({choice})")


def check_preparation(title: str, how: Mapping[str, Any], inputs: Fields[Any]) -> None:
    """Raise :class:`ConfigError`, which begins with ``title``, if no manifest can say that devices prepare samples as in ``how``."""
    for name, of_input in how.items() if isinstance(inputs, Mapping) else [("", how)]:
        where = f"{title}preprocessing: {f'input {name}: ' if name else ''}"
        if not isinstance(of_input, Mapping):
            raise ConfigError(f"{where}got {of_input!r}, expected a dictionary for each input")
        try:
            preparation(dict(of_input))
        except ValueError as error:
            raise ConfigError(f"{where}{error}") from None


def no_graphs(run: Run) -> str:
    """Return why the smallest tier of each network has no training graphs; empty: it has some, as all networks of edgefl have."""
    smallest = {run.architecture.at(tier.ratio): tier for tier in run.tiers}
    own = run.criterion.loss is not None or "fresh_momentum" in run.method.lacks
    for network, tier in smallest.items():
        if own or type(network) is not Architecture:
            try:
                run.graphs_of(run.method, tier)
            except EdgeflError as error:
                return str(error)
    return ""
