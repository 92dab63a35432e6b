"""The keys of the Ray cluster."""

from edgefl.config.field import Keys, key
from edgefl.config.fleet import HOST
from edgefl.config.group import KeyGroup
from edgefl.registry import key_group


class RayKeys(Keys):
    """Where the Ray cluster is. None of it decides the result of a run."""

    ray_address: str = key(
        "auto",
        HOST,
        "Ray cluster of engines ray (each client on its own: the bits of this computer, on nodes alike) and ray-group (those of a tier "
        "together); auto: the one that this computer belongs to; local: one that is started here for the run.",
        "auto|HOST:PORT|local",
    )
    ray_auth: bool = key(True, HOST, "Connect to the Ray cluster with its token. [yes]")


@key_group("ray", after="HostKeys", place=3, host=True)
class RayGroup(KeyGroup):
    """The keys of the Ray cluster."""

    keys = RayKeys
