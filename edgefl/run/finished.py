"""A finished run, opened again: the networks that it trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
from torch import nn

from edgefl.data.prescribed import METADATA
from edgefl.errors import InputError
from edgefl.records import Tier
from edgefl.run.folder import MODEL, Notify, RunFolder
from edgefl.run.prepare import prepare
from edgefl.run.trained import Trained, first_of, of_clients
from edgefl.util.compute import one_thread
from edgefl.util.files import check_free, whole_folder


@contextmanager
def finished(path: Path | str, notify: Notify | None = None) -> Iterator[Trained]:
    """Yield what the finished run in the folder ``path`` trained; ``notify`` is called if the source of its network has changed.

    Raises:
        CheckpointError: the folder holds no finished run, or a damaged one.
        InputError: its data or its network is not there any more.
    """
    folder = RunFolder(Path(path))
    config = folder.config()
    with one_thread():
        run = prepare(config, required=False)
        if notify is not None and (warning := folder.note_on_source(run.config)):
            notify(warning)
        state = folder.model(run.architecture)
        run = run.resumed(state, str(folder.path / MODEL))
        with folder.client_store(state) as store:
            yield Trained(run, state, store)


def network_of(trained: Trained, ratio: float | None, client: int | None) -> nn.Module:
    """Return the deployed network of a tier, or of a client; see :meth:`edgefl.RunResult.network`."""
    run = trained.run
    if client is not None:
        tier = _tier_of(trained, client)
        if ratio is not None and Tier(ratio) != tier:
            raise InputError(f"tier: client {client} trained tier {tier.label}, got {ratio:g}; leave one of the two out")
    else:
        tier = max(run.tiers) if ratio is None else Tier(ratio)
        if tier not in run.tiers:
            known = ", ".join(of.label for of in run.tiers)
            raise InputError(f"tier: got {ratio:g}, expected one of this run's, {known}")
        client = first_of(trained, tier) if of_clients(run) else None
    return run.architecture.at(tier.ratio).bare(trained.module(tier, client))


def _tier_of(trained: Trained, client: int) -> Tier:
    run = trained.run
    if not run.method.personalised:
        raise InputError(f"client: with {run.config.method} all clients of a tier have one network; give a tier instead")
    if not 0 <= client < run.config.clients:
        raise InputError(f"client: got {client}, expected 0 to {run.config.clients - 1}")
    tier = run.plan.tier_of(client, trained.state.round)
    if tier is None:
        raise InputError(f"client: no tier fits the device of client {client}, so it has no network; choose another client")
    return tier


def write_weights(path: Path | str, out: Path) -> Path:
    """Write the weights of every tier's network to ``out/TIER.safetensors``, and return ``out``.

    Raises:
        InputError: ``out`` exists and is not an empty folder. Also what :func:`finished` raises; nothing is written then.
        StorageError: the disk is full.
    """
    check_free(out, InputError)
    with finished(path) as trained:
        networks = {tier: network_of(trained, tier.ratio, None) for tier in trained.run.tiers}
    how = json.dumps(trained.run.data.preprocessing, sort_keys=True)
    with whole_folder(out) as folder:
        for tier, network in networks.items():
            # A copy each: the format refuses tied tensors, and its reader ties them again.
            tensors = {name: tensor.detach().clone().contiguous() for name, tensor in network.state_dict().items()}
            (folder / f"{tier.label}.safetensors").write_bytes(safetensors.torch.save(tensors, {METADATA: how}))
    return out
