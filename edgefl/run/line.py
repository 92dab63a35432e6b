"""A line of rounds with real devices: the folder that each of its rounds writes, from the first one, which an export begins."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from edgefl.config import RunConfig
from edgefl.consent import remember
from edgefl.errors import CheckpointError, first_line
from edgefl.methods.capabilities import advanced
from edgefl.report.metric import metric_text
from edgefl.rng import generator, torch_seeded
from edgefl.run.bundle import Source, Wanted, build_bundle
from edgefl.run.folder import CONFIG, FED_ROUND, MODEL, Notify, RunFolder
from edgefl.run.prepare import begun, prepare
from edgefl.run.run import Run
from edgefl.run.trained import Trained, accuracies, tier_networks
from edgefl.server.checkpoint import to_bytes
from edgefl.server.client_store import ClientStore
from edgefl.server.state import ServerState
from edgefl.util.files import json_bytes, read_at_most, sha256, whole_folder
from edgefl.util.hashes import checked

_MOST_BYTES = 1 << 28


def begin(config: RunConfig, out: Path, wanted: Wanted, line: Path | None, say: Notify) -> None:
    """Write the bundle of a network before any round to ``out``, and what the first round needs to ``line``; None: there is none.

    Raises:
        ConfigError: a key is wrong, or the method's server does not begin with the network's weights.
    """
    run = prepare(config, required=False)
    _check_begins(run)
    run, state = _past_warmup(run)
    with ClientStore(Path("never written")) as store:
        trained = Trained(run, state, store)
        best = accuracies(trained)
        if best:
            say(f"before training: {metric_text(run.criterion.metric, best['global'])}")
        if line is None:
            build_bundle(run, tier_networks(trained), Source(0, sha256(to_bytes(state))), out, say, wanted)
            return
        remember(run.config.model_dump())
        record = {"best": best, "sized": wanted.sized}
        with written(line, run.config.to_toml().encode(), state, record) as (_, source):
            build_bundle(run, tier_networks(trained), source, out, say, wanted)


def _check_begins(run: Run) -> None:
    """Raise :class:`ConfigError` if the network has weights of its own, and the method's server begins with others."""
    if run.architecture.weights is not None:
        return  # checked
    built = []
    for number in range(2):
        with torch_seeded(generator(number, "weights")):
            tensors = run.architecture.build().state_dict()
            built.append({name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()})
    if all(torch.equal(tensor, built[1][name]) for name, tensor in built[0].items()):  # not drawn
        begun(run.method, run.architecture, run.tiers, built[0], run.config.seed)


def _past_warmup(run: Run) -> tuple[Run, ServerState]:
    """Return the run and its state before the first round. The network is trained: warm-ups are over, ranks may follow its spectra."""
    round_ = 2 + getattr(run.method.config, "warmup_rounds", 0)
    method, model = advanced(run.method, run.first_state(), round_, generator(run.config.seed, round_, "advance"))
    run = run if method == run.method else run.at(method)
    return run, ServerState(model, options=run.options)


@contextmanager
def written(folder: Path, config: bytes, state: ServerState, record: Mapping[str, Any]) -> Iterator[tuple[Path, Source]]:
    """Write what the next round needs of this one, whole or not at all; yield the folder to add to, and what its bundle is made from.

    Args:
        folder: absent or empty.
        config: the run's ``config.toml``.
        state: the server's state after the round.
        record: what :func:`record_in` returns in the next round.
    """
    with whole_folder(folder) as temporary:
        content = to_bytes(state)
        RunFolder(temporary).write(MODEL, content)
        RunFolder(temporary).write(CONFIG, config)
        RunFolder(temporary).write(FED_ROUND, json_bytes({"format": 1, "round": state.round, **record}))
        yield temporary, Source(state.round, sha256(content))


def record_in(run: RunFolder) -> dict[str, Any]:
    """Return what the round in a folder has recorded, nothing of a simulated run; CheckpointError if its file was edited.

    ``best`` has the best values of the metric so far by model, and ``sized`` says whether tiers are for devices of a fleet.
    """
    path = run.path / FED_ROUND
    if not path.exists():
        return {}
    try:
        found = json.loads(checked(path, read_at_most(path, _MOST_BYTES, CheckpointError)))
        best = {str(name): float(value) for name, value in found.get("best", {}).items()}
        return {**found, "best": best, "sized": bool(found.get("sized", True))}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({first_line(error)}); restore the file") from None
