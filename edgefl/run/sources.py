"""What a run records about the files that it was made from, so that one who repeats it learns which of them has changed."""

from pathlib import Path

from edgefl.client.criterion import Criterion
from edgefl.config import RunConfig
from edgefl.data.sources import Dataset
from edgefl.fleet.profile import Fleet
from edgefl.models.base import Architecture
from edgefl.models.custom import CustomArchitecture
from edgefl.models.factory import factory_of, root_of, sources_sha256
from edgefl.util.files import sha256
from edgefl.util.networks import is_own


def sources_of(
    config: RunConfig, architecture: Architecture, data: Dataset, criterion: Criterion, fleet: Fleet
) -> dict[str, str]:
    """Return kind of file → SHA-256 of its content, or the folder that its imports begin in."""
    return _of_parts(architecture, data, criterion) | _of_rule(config) | _of_fleet(config, fleet)


def own_networks(architecture: Architecture) -> list[CustomArchitecture]:
    """Return the user's own networks among those of the tiers."""
    return [network for network in architecture.every if isinstance(network, CustomArchitecture)]


def _of_parts(architecture: Architecture, data: Dataset, criterion: Criterion) -> dict[str, str]:
    """Return what a run records about the files of its network, its data, its loss and its metric."""
    found: dict[str, str | None] = {"weights": architecture.weights.sha256 if architecture.weights else None, "data": data.sha256}
    if own := own_networks(architecture):
        hashes = [network.sources_sha256 for network in own]
        found["root"] = next(filter(None, (root_of(network.spec) for network in own)), None)
        found["model"] = hashes[0] if len(hashes) == 1 else sha256("".join(hashes).encode())
    if criterion.spec:
        found |= {"loss_root": root_of(criterion.spec), "loss": criterion.sha256}
    if criterion.measure_sha256:
        found |= {"metric_root": root_of(criterion.measure), "metric": criterion.measure_sha256}
    return {name: value for name, value in found.items() if value}


def _of_rule(config: RunConfig) -> dict[str, str]:
    """Return what a run records about the file of its own learning-rate rule."""
    if not is_own(config.lr_schedule):
        return {}
    root, digest = root_of(config.lr_schedule), sources_sha256(factory_of(config.lr_schedule, "lr_schedule"))
    return {"lr_schedule": digest, **({"lr_schedule_root": root} if root else {})}


def _of_fleet(config: RunConfig, fleet: Fleet) -> dict[str, str]:
    """Return the hashes of the user's own fleet, with the devices that it names, and of the trace."""
    found = {"fleet": sha256(fleet.model_dump_json().encode())} if Path(config.profile).suffix else {}
    if Path(config.availability).suffix:
        found["trace"] = sha256(Path(config.availability).read_bytes())
    return found
