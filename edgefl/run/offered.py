"""What a bundle gave to devices: the run that it is of, and the sub-models and shapes that their updates must have."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from edgefl.bundle.manifest import MANIFEST, Manifest, TierEntry, TrainEntry
from edgefl.bundle.signature import check_signature
from edgefl.client.objective import CONTROL
from edgefl.client.parts import trained_shapes
from edgefl.errors import BundleError, InputError
from edgefl.methods.networks import upload_shapes
from edgefl.records import Submodel, Tier
from edgefl.run.folder import MODEL, RunFolder, beside
from edgefl.run.run import Run
from edgefl.server.exchange import device_submodel
from edgefl.server.state import ServerState
from edgefl.util.files import sha256
from edgefl.wire.update_file import ExpectedUpdate

_NEAR = 1e-4


def run_of(bundle: Path, manifest: Manifest, run: Path | str | None) -> RunFolder:
    """Return the run that a bundle was exported from: ``run``, the folder that an export wrote beside it, or the one that it lies in.

    Raises:
        InputError: it is no run, or its model is not the one that the bundle was made from.
    """
    whole = bundle.resolve()
    folder = RunFolder(Path(run) if run is not None else beside(whole) if beside(whole).is_dir() else whole.parent)
    if run is None and not (folder.path / MODEL).is_file():
        raise InputError(
            f"{bundle}: its parent folder is not a run, and there is no {beside(whole)}; give the run that it was exported from, as --run"
        )
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
    """Raise :class:`BundleError` if a tier's updates cannot be aggregated without knowing the clients that sent them."""
    for entry in manifest.tiers:
        if entry.train is None:
            raise BundleError(f"{bundle}: tier {entry.label}: train: there is none: the bundle was exported for inference only")
        if entry.train.no_update:
            reason = f"cannot be aggregated outside of a run: {entry.train.no_update}"
            raise BundleError(f"{bundle}: updates of {manifest.method} {reason}")


def offer(run: Run, state: ServerState, bundle: Path, manifest: Manifest) -> tuple[dict[str, Submodel], ExpectedUpdate]:
    """Return what ``bundle`` gave to devices, a bundle of the run that ``run`` and ``state`` are of.

    Returns:
        A tier's label → the sub-model of its devices, and what their update files must contain.

    Raises:
        BundleError: the manifest is not what the run wrote, or its tensors differ from those of the run's model, so that an update would
            have no place in the model.
    """
    _check_same(run, state, bundle, manifest)
    sent, shapes = {}, {}
    for entry in manifest.tiers:
        assert entry.train is not None  # checked
        sent[entry.label] = _sent(run, state, bundle, manifest, entry, entry.train)
        tier = sent[entry.label].tier
        shapes[entry.label] = upload_shapes(run.method, run.architecture, tier)
        if dict(entry.train.upload) != shapes[entry.label]:
            problem = f"upload: the bundle's tensors are not those that {manifest.method} aggregates"
            raise BundleError(f"{bundle}: tier {entry.label}: {problem}")
        controls = run.chain.beside(partial(trained_shapes, run.method, run.architecture, tier))
        shapes[entry.label] = {**shapes[entry.label], **controls}
    return sent, ExpectedUpdate(manifest.manifest_sha256, manifest.round, shapes, manifest.classes)


def _check_same(run: Run, state: ServerState, bundle: Path, manifest: Manifest) -> None:
    """Raise :class:`BundleError` if what a manifest says of the run is not so, or its signature is wrong."""
    check_signature(bundle, (bundle / MANIFEST).read_bytes(), None)
    names = run.data.class_names
    facts = {
        "round": (manifest.round, state.round),
        "method": (manifest.method, run.config.method),
        "classes": (manifest.classes, len(names) if names else manifest.classes),
    }
    for key, (got, own) in facts.items():
        if got != own:
            raise BundleError(f"{bundle / MANIFEST}: {key}: got {got}, the run has {own}; export the bundle again")


def _sent(run: Run, state: ServerState, bundle: Path, manifest: Manifest, entry: TierEntry, train: TrainEntry) -> Submodel:
    """Return the sub-model that devices of a tier were given: the bundle's tensors at their places in the state."""
    tier = Tier(float(entry.tier))
    if tier not in run.tiers:
        raise BundleError(f"{bundle}: tier {entry.label}: the run has {', '.join(t.label for t in run.tiers)}")
    submodel, tensors = device_submodel(run.method, state, run.rules, run.config.clients, tier)
    given = _parameters(bundle, manifest, train.parameters)
    for name, tensor in tensors.items():
        if name not in train.trained and not name.startswith(CONTROL):
            continue  # statistics may have been measured anew
        other = given.get(name, torch.zeros_like(tensor) if name.startswith(CONTROL) else None)
        if other is None or other.shape != tensor.shape or not torch.allclose(other, tensor, rtol=_NEAR, atol=_NEAR):
            raise BundleError(
                f"{bundle}: tier {entry.label}: {name} differs from what this computer makes of the run's model, so "
                "updates would not fit; export the bundle again on this computer"
            )
    return replace(submodel, tensors={name: given.get(name, tensor) for name, tensor in submodel.tensors.items()})


def _parameters(bundle: Path, manifest: Manifest, path: str) -> dict[str, Tensor]:
    file = bundle / path
    content = file.read_bytes() if file.is_file() else b""
    if sha256(content) != manifest.files[path].sha256:
        raise BundleError(f"{file}: missing or changed: its SHA-256 is not the manifest's; get the bundle again")
    try:
        return safetensors.torch.load(content)
    except SafetensorError as error:
        raise BundleError(f"{file}: not a safetensors file ({error})") from None
