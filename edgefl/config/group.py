"""Keys that a feature of contrib adds to the configuration of a run.

A group is a class decorated ``@key_group("name")`` in a file of contrib. The decorator's keyword arguments are literals, read without an
import:

- ``after``: the class of the core's keys that its keys come after, such as "TrustKeys"; ``place``: its order among groups there.
- ``host``: True if its keys describe this computer, so that a resumed run may change them.
- ``needs``: key → choice → capabilities that the choice needs of a method, see :mod:`edgefl.methods.axes`.
- ``titles``: key → how the table of methods calls it, for keys that it shows.
- ``of_policies``: its keys that policies of what-if may vary.
- ``compared``: its keys that all runs of a comparison have in common, and that its page shows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import ClassVar, TypeVar, cast

from edgefl.config.field import Keys, KeyValues
from edgefl.config.fleet import FleetKeys, HostKeys
from edgefl.config.task import RoundsKeys, TaskKeys
from edgefl.config.updates import TrainingKeys, TrustKeys
from edgefl.registry import key_groups

K = TypeVar("K", bound=Keys)


# The keys are in the order of the help: pydantic takes the fields of the last base first.
class CoreKeys(HostKeys, FleetKeys, TrustKeys, TrainingKeys, RoundsKeys, TaskKeys):
    """Keys that are checked one by one; :class:`edgefl.config.RunConfig` has those of features too, and checks all together."""


class KeyGroup:
    """Some keys of a run, and what follows from them. Each method does nothing unless it is written."""

    keys: ClassVar[type[Keys]]

    @staticmethod
    def problems(config: CoreKeys) -> Iterable[str]:
        """Yield a message for each contradiction between these keys and others."""
        return ()

    @staticmethod
    def fixed_rounds(config: CoreKeys) -> str:
        """Return why a run cannot continue to more rounds than its configuration has; "" if it can."""
        return ""

    @staticmethod
    def unresolved(config: CoreKeys) -> KeyValues:
        """Return the keys with values that the feature worked out, as they were before: a policy of what-if has others."""
        return {}


def group_keys(config: Keys, kind: type[K]) -> K:
    """Return a run's configuration as one that has the keys of a group: every configuration has them.

    >>> from edgefl.config import RunConfig
    >>> all(group_keys(RunConfig(), group.keys) == RunConfig() for group in groups().values())
    True
    """
    assert isinstance(config, kind)
    return config


def group_names() -> list[str]:
    """Return the names of all groups, in the order of their keys; none is imported."""
    return sorted(key_groups.names(), key=lambda name: int(key_groups.facts(name)["place"]))


@functools.cache
def groups() -> dict[str, type[KeyGroup]]:
    """Return all groups by their names, in the order of their keys."""
    return {name: cast("type[KeyGroup]", key_groups.load(name)) for name in group_names()}
