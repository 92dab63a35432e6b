"""From a configuration to the network of a run, and the loss that its clients minimise: both must fit the data."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.criterion import Criterion
from edgefl.config import RunConfig
from edgefl.data.sources import Dataset
from edgefl.errors import ConfigError, InputError, WireError
from edgefl.methods.state import travelling_shapes
from edgefl.models.base import Architecture, stem_and_classifier
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.models.ties import tied
from edgefl.models.unlike import Unlike
from edgefl.models.weights import checked_weights, weights_in
from edgefl.planning.network import architecture_of, check_takes
from edgefl.records import METRICS
from edgefl.rng import generator, torch_seeded
from edgefl.util.compute import is_finite
from edgefl.util.fields import Fields, each, listed
from edgefl.util.modules import OBJECT
from edgefl.util.networks import is_onnx, is_own, title_of

_TRIED = 2000
"""Held-out samples that the user's own metric is tried with before a run begins."""


def inputs_of(data: Dataset) -> Fields[InputSpec]:
    """Return what a sample of ``data`` consists of: real numbers, or ids below the vocabulary, of a text the same at every position."""

    def spec(x: Any, vocabulary: int, preparation: Mapping[str, Any]) -> InputSpec:
        if not vocabulary:
            return InputSpec(x.shape[1:])
        alike = not preparation.keys().isdisjoint(("alphabet", "words"))
        return InputSpec(x.shape[1:], torch.int64, vocabulary, None if alike else (x.min(axis=0), x.max(axis=0)))

    x = data.train.x
    preparations = {name: data.preprocessing.get(name, {}) for name in x} if isinstance(x, Mapping) else data.preprocessing
    specs: Fields[InputSpec] = each(spec, x, data.vocabulary, preparations)
    return specs


def network_of(config: RunConfig, data: Dataset) -> Architecture:
    """Return the network of a resolved configuration, or those of its tiers.

    Raises:
        InputError: one does not fit the data or cannot be built; the message names its tier.
    """
    if config.tier is None:
        return _one_of(config, "model", str(config.model), data)
    networks = {}
    for label, model in config.tier.items():
        try:
            networks[label] = _one_of(config, "tier", model, data)
        except InputError as error:
            raise ConfigError(f"tier {label}: {error}") from error
    return Unlike.of(networks)


def _one_of(config: RunConfig, key: str, model: str, data: Dataset) -> Architecture:
    samples = inputs_of(data)
    outputs = data.classes or max(1, math.prod(data.target_shape or ()))
    if config.augment != "none" and (not isinstance(samples, InputSpec) or len(samples.shape) != 3):
        shape = listed(each(lambda spec: "x".join(map(str, spec.shape)), samples))
        raise ConfigError(
            f"augment: got {config.augment!r}, expected 'none': samples of {data.name} are of shape {shape}, no images "
            "(channels x height x width)"
        )
    if is_own(model):
        check_found(config, key, model)
        try:
            own = architecture_of(model, samples, outputs, config.norm)
        except ConfigError as error:
            raise ConfigError(
                f"{error} (samples of {data.name}: {listed(samples, '=')})" if is_onnx(model) else str(error)
            ) from None
        assert isinstance(own, CustomArchitecture)
        own = replace(
            own,
            raw=config.loss is not None,
            logits=config.loss is None,
            **_of_file(own, samples, data.name) if is_onnx(model) else {},
        )
        check_takes(own, data.name, classifies=not own.raw)
        return own
    if not isinstance(samples, InputSpec):
        raise ConfigError(
            f"model: {model} takes one input, and samples of {data.name} have {', '.join(samples)}; give --model with a network of your "
            "own whose forward takes them by name"
        )
    architecture = Architecture(model, samples.shape, outputs, config.norm)
    kinds = {True: "token ids", False: "images"}
    known = architecture.vocabulary
    if (has := bool(samples.below)) != (takes := bool(known)):
        both = f"{model} takes {kinds[takes]}, and {data.name} has {kinds[has]}"
        raise ConfigError(f"model: {both}; choose another model or dataset")
    if samples.below > known:
        raise ConfigError(f"model: {model} knows {known} token ids, {data.name} has {samples.below}")
    return architecture


def _of_file(network: CustomArchitecture, samples: Fields[InputSpec], data: str) -> dict[str, Any]:
    """Return the fields of an ONNX file's network that takes ``samples``; ConfigError if an input is missing or of another kind."""
    given = samples if isinstance(samples, Mapping) else dict.fromkeys(network.inputs, samples)
    for name, spec in network.inputs.items():
        if name not in given:
            raise ConfigError(f"{network.model}: its input {name} is missing among {', '.join(given)} of {data}; give it too")
        if spec.dtype.is_floating_point != given[name].dtype.is_floating_point:
            raise ConfigError(
                f"{network.model}: input {name} is {spec} a sample, got {given[name]} of {data}; choose another model or dataset"
            )
    if isinstance(samples, InputSpec):
        return {"inputs": {"": samples}, "input_shape": samples.shape}
    return {"inputs": {name: samples[name] for name in network.inputs}}


def check_finite(network: nn.Module, model: str) -> None:
    """Raise :class:`ConfigError` if a tensor that is sent begins with NaN or infinity, which no receiver accepts."""
    parameters = dict(network.named_parameters(remove_duplicate=False))
    for name, tensor in network.state_dict().items():
        if isinstance(tensor, Tensor) and not is_finite(tensor):
            unsent = "register the buffer with persistent=False, so that it is not sent"
            remedy = "give it finite values" if name in parameters else unsent
            raise ConfigError(f"model {model}: {name} begins with NaN or infinity, expected finite values; {remedy}")


def with_weights(architecture: Architecture, path: str, new_classifier: bool) -> Architecture:
    """Return the architecture with the initial weights in the file at ``path``; WireError if it does not fit the network."""
    skeleton = architecture.skeleton()
    classifier, shapes = f"{stem_and_classifier(skeleton)[1]}.", travelling_shapes(skeleton)
    same = tied(skeleton)
    try:
        checked_weights(path, shapes, classifier if new_classifier else "", same)
    except WireError as error:
        if new_classifier:
            raise
        with suppress(WireError):
            checked_weights(path, shapes, classifier, same)
            raise ConfigError(f"{error}; give --new-classifier to leave {classifier.rstrip('.')} out") from None
        raise
    return replace(architecture, weights=weights_in(path, classifier if new_classifier else "", shapes))


def check_found(config: RunConfig, key: str, spec: str) -> None:
    """Check that the processes of a run find what ``spec`` names."""
    if spec.startswith(OBJECT) and (config.engine not in ("inline", "group") or config.workers != 1):
        raise ConfigError(
            f"{key}: {title_of(spec)} is an object that other processes cannot import; define it at the top of a module, or use engine "
            "inline"
        )


def criterion_of(config: RunConfig, data: Dataset) -> Criterion:
    """Return what clients minimise and what is measured; raise :class:`InputError` if it does not fit the data, or is not there."""
    if config.loss is None and not data.classes:
        if _one_hot(data.train.y):
            raise ConfigError(f"loss: {data.name} has one-hot targets; store labels instead, such as y.argmax(1)")
        raise ConfigError(f"loss: {data.name} has float32 targets, no labels; give a loss such as torch.nn.functional:mse_loss")
    if data.target_shape is not None and config.permute_labels:
        raise ConfigError(f"permute_labels: {data.name} has float32 targets, no labels; leave the key out")
    if config.metric in METRICS and not data.classes:
        raise ConfigError(
            f"metric: {config.metric} compares classes, and {data.name} has float32 targets; give a function of your own, or leave it out"
        )
    for key, spec in (("loss", config.loss), ("metric", config.metric)):
        if spec is not None:
            check_found(config, key, spec)
    found = Criterion.of(config.loss, None if data.classes else data.train.y, config.metric)
    if found.loss is None:
        found.tried(data.test.y[:_TRIED], data.classes, torch.Generator().manual_seed(0))
    return found


def _one_hot(targets: np.ndarray) -> bool:
    """Return whether each sample has one 1 among zeros."""
    if targets.ndim != 2 or targets.shape[1] == 1:
        return False
    return bool(((targets == 1).sum(1) == 1).all() and ((targets != 0).sum(1) == 1).all())


def checked_loss(criterion: Criterion, architecture: Architecture, data: Dataset, seed: int) -> Criterion:
    """Return the criterion, checked with two samples and an initial network: see :meth:`Criterion.checked`."""
    two = data.train.taken(slice(2))
    with torch_seeded(generator(seed, "loss")):
        return criterion.checked(architecture.build(), each(torch.tensor, two.x), torch.tensor(two.y), data.classes)
