"""Which tensors are statistics: buffers that clients measure and do not train, such as the mean and variance of BatchNorm.

Statistics are averaged. A step beyond their average makes them wrong: a variance may become negative, and the network returns NaN. So
server optimizers, and the weights of old updates in mode async, see trained tensors only.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from edgefl.methods.base import Method
from edgefl.methods.networks import global_tier, skeleton, upload_shapes
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture, once_per_network
from edgefl.records import Tier, Update


@once_per_network
def measured(architecture: Architecture, method: Method, tier: Tier) -> frozenset[str]:
    """Return the names of the statistics among the tensors that a client of ``tier`` sends."""
    buffers = dict(skeleton(method, architecture, tier).named_buffers())
    return frozenset(buffers.keys() & upload_shapes(method, architecture, tier).keys())


def statistics(method: Method, state: GlobalState) -> frozenset[str]:
    """Return the names of the statistics among the tensors of ``state``."""
    targets: set[str] = set()
    for tier in dict.fromkeys((*state.tiers, global_tier(method, state))):
        if names := measured(state.architecture, method, tier):
            places = method.submodel(state, tier, np.random.default_rng(0)).places
            targets |= {places[name].target for name in names if name in places}
    return frozenset(targets)


def mixed(
    update: Update, received: Mapping[str, Tensor], now: Mapping[str, Tensor], names: frozenset[str], weight: float
) -> Update:
    """Return ``update`` with the weighted mean of the present values and those ``received``, for its statistics ``names``.

    >>> update = Update(3, Tier(1.0), {"bn.running_var": torch.tensor([-0.5])}, {}, 1)
    >>> var, now = {"bn.running_var": torch.tensor([1.0])}, {"bn.running_var": torch.tensor([2.0])}
    >>> mixed(update, var, now, frozenset(["bn.running_var"]), 0.25).tensors
    {'bn.running_var': tensor([1.7500])}
    """
    means = {name: torch.lerp(now[name], received[name], weight) for name in names if name in now}
    return replace(update, tensors={**update.tensors, **means}) if means else update
