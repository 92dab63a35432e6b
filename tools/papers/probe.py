"""A probe: a very short run with the settings of a stored one. If its losses are the same as before, so is the algorithm.

The hash of :mod:`papers.inputs` changes with every edit of a definition, also with one that computes the same. A probe tells the two apart
in seconds. It trains eight clients at most for four rounds, so that decay, warm-up and plans made anew all happen, and every aggregation
but the last shows in the next round's losses. The last one shows in the loss on held-out samples: of a client's own, on all.

Figures are equal if they differ by no more than :data:`TOLERANCE`. Other processors add float32 numbers in another order. With torch and
oneDNN limited to AVX2 or SSE4.1 instead of AVX-512, losses differ by 1e-6, and by 6e-4 at most, where the maximum of a pooling window tips
over. Longer and faster probes amplify that: at a rate of .01 and six steps a round it was 15 %. Another decay, another weight of clients or
half more of a penalty move losses by 2e-3 to 8e-2. A term of the loss that is too weak to show is multiplied by :data:`STRENGTH`.
"""

from __future__ import annotations

import functools
import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.client import evaluate
from edgefl.config import RunConfig
from edgefl.data.shards import TEST_SAMPLES
from edgefl.data.split import Split
from edgefl.methods.create import create
from edgefl.methods.networks import global_tier
from edgefl.report.round_lines import RoundLine
from edgefl.report.words import clients_of
from edgefl.run.trained import Trained, of_clients
from papers.runs import SAMPLES
from papers.store import PROBED
from papers.training import figures_of, trained_in

Probe = dict[str, list[float]]
SEED, ROUNDS, CLIENTS, PER_ROUND, SHARD, BATCH, HELD_OUT = 1001, 4, 8, 4, 16, 8, 200
RATE = 0.003
"""Of every probe: a rate is a setting, and one probe serves all trials of a grid."""
WEAK, STRENGTH = ("frobenius_decay", "orthogonality", "penalty"), 300.0
"""Weights of terms that are small beside the loss, and how many times as strong they are in a probe."""
PHASES = {"plan_every": 1, "warmup_rounds": 1}
"""Options that count rounds → their value in a probe."""
TOLERANCE = 1e-3
"""Relative, of losses. Accuracies may differ by two of the held-out samples."""


def probe_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the probe of a run: equal for all of its seeds, and for all rates that it was tuned over."""
    config = RunConfig.of(settings)
    clients = min(config.clients, CLIENTS)
    everyone = config.per_round == config.clients
    own: Mapping[str, Any] = getattr(create(config.method, config.method_options).config, "model_dump", dict)()
    weak = {name: value for name in WEAK if isinstance(value := own.get(name), float) and value}  # FLANC's penalty is a word
    if "penalty" in weak:
        weak["sparsity"] = own["sparsity"]  # what a stronger penalty makes small is pruned as well
    options = {
        **config.method_options,
        **{name: STRENGTH * value for name, value in weak.items()},
        **{name: rounds for name, rounds in PHASES.items() if own.get(name)},
    }
    return {
        **settings,
        "seed": SEED,
        "rounds": ROUNDS,
        "eval_every": ROUNDS,
        "eval_samples": HELD_OUT,
        "clients": clients,
        "per_round": clients if everyone else min(PER_ROUND, clients),
        "data_share": min(1.0, SHARD * clients / SAMPLES[config.dataset]),
        "local_epochs": 1,
        "batch_size": min(config.batch_size, BATCH),
        "lr": RATE,
        "weight_decay": STRENGTH * config.weight_decay,
        **({"method_options": options} if options else {}),
    }


def probe(settings: Mapping[str, Any], local: bool) -> Probe:
    """Return the figures of the probe of a run: losses per client and round, losses and accuracies on held-out samples.

    Under the conditions of a fleet, the costs of the rounds follow the losses per client.

    Raises:
        InputError: this version's edgefl does not have such a run.
        NotTrainedError: the probe diverges.
    """
    return {key: list(values) for key, values in _probe(json.dumps(probe_settings(settings), sort_keys=True), local).items()}


@functools.cache
def _probe(settings: str, local: bool) -> Probe:
    with (
        tempfile.TemporaryDirectory() as folder,
        trained_in(Path(folder) / "run", json.loads(settings), local, test_samples=TEST_SAMPLES) as (trained, rounds),
    ):
        figures = figures_of(trained, rounds, local)
        accuracies = [*figures["accuracy"].values(), *(figures[key] for key in sorted(figures) if key.startswith("local_"))]
        return {
            "train_loss": [*_train_losses(rounds), *_costs(trained, rounds)],
            "held_out_loss": [_digits(loss) for loss in _held_out_losses(trained)],
            "accuracy": [_digits(share) for share in accuracies if share is not None],
        }


def _train_losses(rounds: list[RoundLine]) -> list[float]:
    """Return the losses of all sessions that trained; on a fleet, clients may be lost."""
    losses = (client.train_loss for client in clients_of(rounds))
    return [_digits(loss) for loss in losses if loss is not None]


def _costs(trained: Trained, rounds: list[RoundLine]) -> list[float]:
    """Return the clock, bytes and joules of every round under the conditions of a fleet, where they are results; else nothing."""
    if trained.run.config.conditions == "ideal":
        return []
    return [_digits(getattr(line, key)) for line in rounds for key in ("clock_s", "download_bytes", "upload_bytes", "energy_j")]


def _held_out_losses(trained: Trained) -> list[float]:
    """Return the mean loss of every client's model where clients have their own, else of every tier's, and of the server's model."""
    run, state = trained.run, trained.state
    if of_clients(run):
        tiers = [run.plan.tier_of(client, state.round) or run.tiers[-1] for client in range(run.config.clients)]
        return [_loss(trained, tier, run.clients.shards.test(client), client) for client, tier in enumerate(tiers)]
    whole = global_tier(run.method, state.model)
    return [_loss(trained, tier, run.test_of(state.round)) for tier in (whole, *run.tiers)]


def _loss(trained: Trained, tier: Any, test: Split, client: int | None = None) -> float:
    x, y = np.asarray(test.x)[:HELD_OUT], np.asarray(test.y)[:HELD_OUT]
    outputs = evaluate.outputs(trained.module(tier, client), x, evaluate.BATCH_SIZE).astype(np.float64)
    return float(np.mean(np.logaddexp.reduce(outputs, axis=1) - outputs[np.arange(len(y)), y]))


def _digits(value: float) -> float:
    return float(f"{value:.7g}")


def difference(stored: Mapping[str, Any], found: Probe) -> str | None:
    """Return the largest difference between two probes of the same settings in words; None if they are equal within the tolerance."""
    for key in PROBED:
        before, after = stored[key], found[key]
        if len(before) != len(after):
            return f"{key}: {len(after)} figures, stored {len(before)}"
        pairs = list(zip(before, after, strict=True))
        if not pairs:
            continue
        allowed = 2 / HELD_OUT if key == "accuracy" else TOLERANCE
        one, other = max(pairs, key=lambda pair: _distance(key, *pair))
        if not _distance(key, one, other) <= allowed:  # also if it is NaN
            return f"{key}: {other:g}, stored {one:g}"
    return None


def _distance(key: str, one: float, other: float) -> float:
    apart = abs(one - other)
    return apart if key == "accuracy" or not math.isfinite(apart) else apart / max(abs(one), abs(other), 0.01)
