"""All keys of a run, of every heading of the command line's help."""

from edgefl.config.fleet import FleetKeys, HostKeys
from edgefl.config.task import RoundsKeys, TaskKeys
from edgefl.config.updates import TrainingKeys, TrustKeys


# The keys are in the order of the help: pydantic takes the fields of the last base first.
class AllKeys(HostKeys, FleetKeys, TrustKeys, TrainingKeys, RoundsKeys, TaskKeys):
    """The keys of a run, each of which is checked by itself; :class:`edgefl.config.RunConfig` checks them together."""
