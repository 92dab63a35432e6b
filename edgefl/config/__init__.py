"""A run's configuration: one file of keys for each heading of the command line's help, and :class:`RunConfig`, which has them all."""

import importlib
from typing import TYPE_CHECKING, Any

from edgefl.config.fleet import HOST as HOST
from edgefl.config.task import TASK as TASK
from edgefl.config.updates import SCREENING as SCREENING
from edgefl.config.updates import TRUST as TRUST

if TYPE_CHECKING:
    from edgefl.config.run_config import FLAGS as FLAGS
    from edgefl.config.run_config import HOST_KEYS as HOST_KEYS
    from edgefl.config.run_config import RunConfig as RunConfig
    from edgefl.config.run_config import admit_keys as admit_keys
    from edgefl.config.run_config import changed as changed
    from edgefl.config.run_config import keys_of as keys_of
    from edgefl.config.run_config import lengthened as lengthened


def __getattr__(name: str) -> Any:
    """Return a name of ``run_config``, which imports the keys of features, which import files of this package."""
    return getattr(importlib.import_module("edgefl.config.run_config"), name)
