"""Factorized-FL β: the rank-1 factors and the sparse correction all travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from edgefl.factor.rank1 import prune
from edgefl.methods.factorized_fl import FactorizedFL, rank_one_layers
from edgefl.registry import method


@method("factorized-fl-beta")
class FactorizedFLBeta(FactorizedFL):
    """Factorized-FL whose u, v and μ all travel and are averaged with the same weights (section 5.1, Algorithm 2).

    Biases and normalisation, which the paper does not mention, travel too; the classifier stays on the client with
    ``personal_classifier``. Uploads have zeros for the entries of μ below λ, which the codec ``sparse`` leaves out. Downloads are averages
    of several clients' μ, at full length. The server remembers a whole network of every client that took part.
    """

    title: ClassVar[str] = "Factorized-FL β"
    travels: ClassVar[str] = "both ways: u, v, μ, biases, normalisation; μ goes up pruned, short under --codec sparse; down dense"
    stays: ClassVar[str] = "the classifier (personal_classifier)"
    contract_exceptions: ClassVar[Mapping[str, str]] = {}

    def _down(self, network: nn.Module) -> frozenset[str]:
        classifier = list(rank_one_layers(network))[-1] if self.config.personal_classifier else ""
        state = network.state_dict()
        return frozenset(name for name, t in state.items() if t.is_floating_point() and name.rpartition(".")[0] != classifier)

    def _up(self, network: nn.Module) -> frozenset[str]:
        return self._down(network)

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        """Return what travels, μ pruned."""
        mus = {f"{name}.mu" for name in rank_one_layers(module)}
        return {name: prune(t, self.config.sparsity) if name in mus else t for name, t in super().upload(module).items()}
