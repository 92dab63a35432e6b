"""OrigDrop: HeteroFL with small clients only, PriSM's baseline in the original space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from edgefl.factor.width import cut
from edgefl.methods.heterofl import HeteroFL
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.registry import method


@method("origdrop")
class OrigDrop(HeteroFL):
    """The leading slice of every weight, trained as HeteroFL trains it, with no client at full width (PriSM, section 4).

    The server holds the network of the largest trained tier only: no client ever has the full network's other entries. Scalers and
    first weights are HeteroFL's for the full width, so that a run has the bits of HeteroFL at the same tiers.
    """

    title: ClassVar[str] = "OrigDrop"
    paper: ClassVar[str] = "Niu et al., TMLR 2023, section 4 (Baselines)"
    default_tiers: ClassVar[tuple[float, ...]] = (0.4, 0.2)
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "the full tier computes what the global model computes": "a deployed network has the scaler of its width folded into its "
        "weights, and the largest width is below 1 here",
    }

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the largest tier's slice of the full network's initial weights."""
        state = super().init(architecture, tiers, rng)
        return state.replace(cut(state.tensors, self.submodel(state, max(tiers), rng).places))

    def global_tier(self, state: GlobalState) -> Tier:
        """Return the largest trained width."""
        return max(state.tiers)
