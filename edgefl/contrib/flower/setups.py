"""The setup that a device receives once, before it trains a tier: training graphs, or for torch the task. Its address is its hash."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors.numpy

from edgefl.bundle.manifest import MANIFEST, UNSEALED
from edgefl.bundle.manifest_file import FORMAT_VERSION
from edgefl.bundle.write import about_inputs
from edgefl.client.messages import JobSetup, task_fields, write_setup
from edgefl.client.objective import CONTROL
from edgefl.client.parts import first_personal
from edgefl.contrib.flower.torch_device import JOB_SETUP, TASK
from edgefl.errors import ConfigError
from edgefl.models.base import load
from edgefl.records import Submodel, Tier
from edgefl.run.bundle import device_cost, trainable
from edgefl.run.run import Run
from edgefl.run.trained import of_clients
from edgefl.util.files import sha256
from edgefl.wire.message import write_header
from edgefl.wire.payload import decode


@dataclass(frozen=True)
class Setup:
    """The files of a setup by their paths. ``digest`` is the hash in its manifest, over all of them."""

    digest: str
    files: Mapping[str, bytes] = field(repr=False)


def check_run(run: Run) -> None:
    """Raise :class:`ConfigError` if real devices cannot train ``run``, whatever they are."""
    if run.config.mode != "sync":
        raise ConfigError(f"mode: got {run.config.mode!r}, expected 'sync': rounds with real devices wait for their answers")
    if run.config.metric == "worst-client":
        raise ConfigError(
            "metric: worst-client needs held-out samples of every client, which real devices do not send; give another"
        )
    if run.config.eval_after_training:
        raise ConfigError("eval_after_training: got true, expected false: devices train, and do not evaluate; leave it out")
    if reason := next(filter(None, (feature.no_app(run.config) for feature in run.features)), ""):
        raise ConfigError(reason)
    if run.config.stages:
        raise ConfigError(f"stages: {', '.join(run.config.stages)} is simulated only: devices train without it; leave it out")
    if of_clients(run):
        what = f"method {run.config.method}" if run.method.personalised else "permute_labels"
        raise ConfigError(
            f"{what}: the clients have models or labels of their own, which stay on their devices; choose one shared model"
        )


def graphs_for(run: Run, submodel: Submodel, payload: bytes, shapes: Mapping[str, tuple[int, ...]]) -> Setup:
    """Return the training graphs of a tier as a bundle of nothing else, with the tensors that do not travel.

    Args:
        run: in the present phase of its method.
        submodel: what the devices of the tier are sent.
        payload: the same, encoded, with the server's control variates.
        shapes: name → shape of the tensors in the payload.

    Raises:
        ConfigError: devices cannot take part in rounds of the method without torch; the message says why.
    """
    tier, network = submodel.tier, submodel.build()
    load(network, {**submodel.tensors, **first_personal(run.method, run.architecture, tier, run.config.seed)})
    sent = decode(payload, shapes, f"the server to tier {tier.label}")
    control = {name: tensor for name, tensor in sent.items() if name.startswith(CONTROL)}
    entry, contents = trainable(run, tier, network, control, device_cost(run, tier))
    if entry.no_update:
        raise ConfigError(
            f"method {run.config.method}: devices cannot train it with onnxruntime: {entry.no_update}; give them torch"
        )
    own = {name: value for name, value in safetensors.numpy.load(contents[entry.parameters]).items() if name not in sent}
    files = {path: contents[path] for path in entry.graphs} | {entry.parameters: safetensors.numpy.save(own)}
    return _sealed(run, tier, files, train=entry.model_dump(mode="json"))


def task_for(run: Run, submodel: Submodel) -> Setup:
    """Return what a device needs to train a tier with torch: the run's task, its method and the tier."""
    job = write_setup(JobSetup(run.method, submodel.tier, None))[0]
    files = {TASK: write_header("task", task_fields(run.clients.task)), JOB_SETUP: job}
    return _sealed(run, submodel.tier, files)


def _sealed(run: Run, tier: Tier, files: Mapping[str, bytes], **parts: Any) -> Setup:
    data = run.data
    entry = {"label": tier.label, "forward": "", "batch_size": run.config.batch_size, "variants": [], **parts}
    manifest = {
        "format_version": FORMAT_VERSION, "manifest_sha256": UNSEALED, "round": 0,
        **about_inputs(run.inputs, data.preprocessing), "classes": run.architecture.classes,
        "class_names": list(data.class_names), "tiers": [entry],
        "files": {path: {"sha256": sha256(content), "bytes": len(content)} for path, content in sorted(files.items())},
        **({} if data.target_shape is None else {"target_shape": list(data.target_shape)}),
    }  # fmt: skip
    text = json.dumps(manifest).encode()
    digest = sha256(text)
    return Setup(digest, {MANIFEST: text.replace(UNSEALED.encode(), digest.encode(), 1), **files})
