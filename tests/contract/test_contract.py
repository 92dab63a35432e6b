"""The contract of methods, held against every method of the package, and against options that change what a method does."""

import pytest
from mobile import Mobile
from other_axes import OtherAxes

from edgefl.methods.create import create
from edgefl.registry import methods
from edgefl.testing.cases import ARCHITECTURES, parametrize
from edgefl.testing.contract import test_exceptions_name_rules_that_exist  # noqa: F401
from edgefl.testing.rules_of_aggregation import *  # noqa: F403
from edgefl.testing.rules_of_submodels import *  # noqa: F403
from edgefl.testing.rules_of_training import *  # noqa: F403

CHEAPEST = "cnn"

# Every method, and options that change its networks.
METHODS = {name: create(name) for name in methods.names()} | {
    "prism outputs": create("prism", {"outputs": 0.4}),
    "factorized-fl-beta as printed": create("factorized-fl-beta", {"reshape": "filters", "penalty": 5e-4}),
}
# Options that change what travels or how the server aggregates, and none of the networks.
AGGREGATIONS = {
    **{f"fedhm {how}": create("fedhm", {"aggregation": how}) for how in ("residual", "bands")},
    "fedhm spectral": create("fedhm", {"allocate": "spectral", "plan_every": 1}),
    "prism handed momentum": create("prism", {"outputs": 0.4, "handed_momentum": True}),
    "clustered-fl personal classifier": create("clustered-fl", {"personal_classifier": True}),
}
# A network of 1×1 convolutions, which are factorized only if they are named.
ONLY = ("fedhm 1x1", create("fedhm", {"factorize": "conv,linear,1x1"}), "mobile", Mobile())

# Every kind of factor of convolutions over signals and volumes.
OVER_OTHER_AXES = [
    (name, METHODS[name], "other axes", OtherAxes())
    for name in (
        "fedhm",
        "fedpara",
        "lowrank",
        "prism",
        "prism outputs",
        "flanc",
        "factorized-fl",
        "factorized-fl-beta as printed",
        "flora",
    )
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Instead of for ``--method``: each rule is checked on the cheapest kind of network, or on those of ``--cases``."""
    chosen = metafunc.config.getoption("--cases")
    kinds = [kind for kind in ARCHITECTURES if chosen == "all" or (kind == CHEAPEST) == (chosen == "one")]
    parametrize(metafunc, METHODS, AGGREGATIONS, [] if chosen == "one" else [ONLY, *OVER_OTHER_AXES], kinds)
