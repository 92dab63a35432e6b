"""torch's allocator and MemTracker: the memory of a training step that ``edgefl profile`` predicts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import torch
from memory.images import IMAGES
from memory.measure import client_step, trained_bytes
from memory.network import Network
from memory.sequences import SEQUENCES
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

import edgefl
from edgefl.util.compute import one_thread
from judges.verdict import EQUAL, Case, Judge, Skip, Verdict, reference

NETWORKS = {network.name: network for network in (*IMAGES, *SEQUENCES)}
WITHIN = 0.01
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
INSTRUCTIONS = "AVX512"
"""Of the processor whose kernels of convolutions edgefl predicts; those of others need other workspaces."""


def _fit(network: Network) -> None:
    """Skip a network whose memory is another one here, or whose loss is another one in a profile."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = network.build().eval()
        if module(network.inputs(2)).dim() != 2:
            raise Skip("its outputs are no logits: a profile takes another loss")
    here = torch.backends.cpu.get_cpu_capability()
    if here != INSTRUCTIONS and any(isinstance(part, CONVOLUTIONS) for part in module.modules()):
        raise Skip(f"convolutions are predicted for a processor with {INSTRUCTIONS}, this one has {here}")


@cache
def _predicted(name: str) -> int:
    network = NETWORKS[name]
    row = edgefl.profile(network.build, network.inputs(network.batch_size), batch_size=network.batch_size)[0]
    return int(row.training_memory_bytes)


@cache
def _allocated(name: str) -> int:
    with reference("torch"):
        return trained_bytes(NETWORKS[name])


def _tracked(name: str) -> int:
    """Return MemTracker's peak of the second step: the first one makes the optimizer's state."""
    with reference("MemTracker"):
        module, optimizer, step = client_step(NETWORKS[name])
        tracker = MemTracker()
        tracker.track_external(module, optimizer)
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
        return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def _compared(found: int, measured: int) -> Verdict:
    off = found / measured - 1
    return EQUAL if abs(off) <= WITHIN else Verdict("wrong", f"{off:+.1%}: {found:,} bytes, measured {measured:,}")


def _judged(name: str, by_tracker: bool) -> Verdict:
    with one_thread():
        _fit(NETWORKS[name])
        measured = _allocated(name)
        if by_tracker:
            tracked = _tracked(name)
            if abs(tracked / measured - 1) > WITHIN:  # it sees tensors, and not what a kernel allocates
                raise Skip(f"MemTracker: {tracked / measured - 1:+.1%} from torch's allocator")
            measured = tracked
        return _compared(_predicted(name), measured)


def cases(subject: str) -> Iterator[Case]:
    """Return the two cases of a network."""
    yield Case("allocator", partial(_judged, subject, False))
    yield Case("MemTracker", partial(_judged, subject, True))


JUDGE = Judge(
    "Training memory",
    "Networks of common layers, of the table in [Costs](costs.md): the peak of a training step as `edgefl profile` predicts it is within "
    "1 % of what torch's allocator records, and of what `MemTracker` finds. Where the two differ, MemTracker is skipped: it sees "
    "tensors, not what kernels allocate. Convolutions are judged on processors with AVX-512, for which they are predicted.",
    ("torch",),
    lambda: list(NETWORKS),
    cases,
    every=19,
)
