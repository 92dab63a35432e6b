"""What a server of real devices screens their updates with if nobody has chosen anything."""

from collections.abc import Collection

from edgefl.config import RunConfig
from edgefl.errors import ConfigError
from edgefl.methods.axes import conflict
from edgefl.run.resolved import method_of

DEFENCE = "norm-filter"
"""Averaging alone lets one device of ten spoil a model. This defence drops few updates of honest devices."""
STRENGTH = 6.0
"""If every client has one class, the changes of honest clients are up to five times as long as the median of their tier."""


def guarded(config: RunConfig, given: Collection[str]) -> tuple[RunConfig, str]:
    """Return ``config`` with :data:`DEFENCE` of :data:`STRENGTH`, unless it has a defence, or ``given`` keys say that it has none.

    The second value is why a run cannot have it, such as a method whose clients share no coordinates; "" if it can.
    """
    if config.defence != "none" or "defence" in given:
        return config, ""
    try:
        strength = STRENGTH if config.defence_strength is None else config.defence_strength
        found = RunConfig.of({**config.model_dump(), "defence": DEFENCE, "defence_strength": strength})
        why = conflict(method_of(found).gaps, "defence", DEFENCE)
    except ConfigError as error:
        why = str(error)
    return (config, why) if why else (found, "")
