"""The keys of a run that the core has, of every heading of the command line's help."""

from edgefl.config.fleet import FleetKeys, HostKeys
from edgefl.config.task import RoundsKeys, TaskKeys
from edgefl.config.updates import TrainingKeys, TrustKeys


# The keys are in the order of the help: pydantic takes the fields of the last base first.
class CoreKeys(HostKeys, FleetKeys, TrustKeys, TrainingKeys, RoundsKeys, TaskKeys):
    """Keys that are checked one by one; :class:`edgefl.config.RunConfig` has those of features too, and checks all together."""
