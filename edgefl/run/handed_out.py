"""What a bundle gave to devices, held against the run that it was exported from: every tensor at its place in the server's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from edgefl.bundle.manifest import Manifest
from edgefl.client.objective import CONTROL
from edgefl.client.parts import trained_shapes
from edgefl.errors import BundleError, InputError
from edgefl.records import Submodel, Tier
from edgefl.run.folder import MODEL, RunFolder
from edgefl.run.run import Run
from edgefl.server.exchange import device_submodel
from edgefl.server.state import ServerState
from edgefl.util.files import sha256
from edgefl.wire.update_file import Expected

_NEAR = 1e-4


@dataclass(frozen=True)
class Offer:
    """By a tier's label, the sub-model that its devices were given; and what their updates must be."""

    sent: Mapping[str, Submodel]
    expected: Expected


def run_of(bundle: Path, manifest: Manifest, run: Path | str | None) -> RunFolder:
    """Return the run that a bundle was exported from: ``run``, or the folder that the bundle lies in.

    Raises:
        InputError: it is no run, or its model is not the one that the bundle was made from.
    """
    folder = RunFolder(Path(run) if run is not None else bundle.resolve().parent)
    if run is None and not (folder.path / MODEL).is_file():
        raise InputError(f"{bundle}: the folder it lies in holds no run; give the one that it was exported from as --run")
    path = folder.require(MODEL)
    found = sha256(path.read_bytes())
    if manifest.state_sha256 is None:
        raise BundleError(f"{bundle}: state_sha256: the bundle does not say which model it was made from; export it again")
    if found != manifest.state_sha256:
        raise BundleError(
            f"{bundle}: state_sha256: got {manifest.state_sha256[:16]}…, {path} has {found[:16]}…: the bundle is of another "
            "run or round; give its own as --run"
        )
    return folder


def check_aggregates(bundle: Path, manifest: Manifest) -> None:
    """Raise :class:`BundleError` unless updates of every tier can be aggregated by a server that knows no client."""
    for entry in manifest.tiers:
        if entry.train is None:
            raise BundleError(f"{bundle}: tier {entry.label}: train: there is none: the bundle was exported for inference only")
        if entry.train.no_update:
            raise BundleError(
                f"{bundle}: updates of {manifest.method} cannot be aggregated outside of a run: {entry.train.no_update}"
            )


def offer(run: Run, state: ServerState, bundle: Path, manifest: Manifest) -> Offer:
    """Return what ``bundle`` gave to devices, a bundle of the run that ``run`` and ``state`` are of.

    Raises:
        BundleError: it is not what this run's model gives: an update of it would have no place.
    """
    sent = _sent(run, state, bundle, manifest)
    return Offer(sent, _expected(run, bundle, manifest, sent))


def _sent(run: Run, state: ServerState, bundle: Path, manifest: Manifest) -> dict[str, Submodel]:
    """Return the sub-model that devices of each tier were given, by its label: the bundle's tensors at their places in the state."""
    found = {}
    for entry in manifest.tiers:
        assert entry.train is not None  # checked
        tier = Tier(float(entry.tier))
        if tier not in run.tiers:
            raise BundleError(f"{bundle}: tier {entry.label}: the run has {', '.join(t.label for t in run.tiers)}")
        submodel, tensors = device_submodel(run.method, state, run.rules, run.config.clients, tier)
        given = _parameters(bundle, manifest, entry.train.parameters)
        for name, tensor in tensors.items():
            if name not in entry.train.trained and not name.startswith(CONTROL):
                continue  # statistics may have been measured anew
            other = given.get(name)
            if other is None and name.startswith(CONTROL):
                other = torch.zeros_like(tensor)
            if other is None or other.shape != tensor.shape or not torch.allclose(other, tensor, rtol=_NEAR, atol=_NEAR):
                raise BundleError(
                    f"{bundle}: tier {entry.label}: {name} is not what the run's model gives on this computer: an update would have no "
                    "place in it; export the bundle again, here"
                )
        found[entry.label] = replace(
            submodel, tensors={name: given.get(name, tensor) for name, tensor in submodel.tensors.items()}
        )
    return found


def _parameters(bundle: Path, manifest: Manifest, path: str) -> dict[str, Tensor]:
    file = bundle / path
    content = file.read_bytes() if file.is_file() else b""
    if sha256(content) != manifest.files[path].sha256:
        raise BundleError(f"{file}: missing or changed: its SHA-256 is not the manifest's; get the bundle again")
    try:
        return safetensors.torch.load(content)
    except SafetensorError as error:
        raise BundleError(f"{file}: not a safetensors file ({error})") from None


def _expected(run: Run, bundle: Path, manifest: Manifest, sent: Mapping[str, Submodel]) -> Expected:
    tiers = {}
    for entry in manifest.tiers:
        assert entry.train is not None  # checked
        tier = sent[entry.label].tier
        shapes = run.method.upload_shapes(run.architecture, tier)
        if dict(entry.train.upload) != shapes:
            raise BundleError(
                f"{bundle}: tier {entry.label}: upload: the bundle's tensors are not those that {manifest.method} aggregates"
            )
        controls = run.rules.objective.control_shapes(trained_shapes(run.method, run.architecture, tier))
        tiers[entry.label] = {**shapes, **controls}
    return Expected(manifest.manifest_sha256, manifest.round, tiers)
