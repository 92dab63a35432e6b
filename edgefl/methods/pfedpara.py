"""pFedPara: one inner weight of every layer is shared, the other one is each client's own."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from edgefl.factor.hadamard import Shape
from edgefl.factor.hadamard_layers import HadamardWeight, composed_weights
from edgefl.methods.base import MethodConfig
from edgefl.methods.fedpara import Factored, candidates, factorized_ranks
from edgefl.models.base import weighted_layers
from edgefl.records import Tier
from edgefl.registry import method


class PFedParaConfig(MethodConfig):
    """Options of pFedPara.

    Attributes:
        classifier: whether the classifier is factorized too; None: if the network has no convolutions.
        personal_classifier: whether the whole classifier stays on its client, as it must if clients permute the labels.
    """

    classifier: bool | None = None
    personal_classifier: bool = False


@method("pfedpara")
class PFedPara(Factored):
    """W = W₁ ⊙ (W₂ + 1): X₁, Y₁ (and T₁) are averaged, X₂, Y₂ (and T₂) never leave their client (section 2.3, Algorithm 2).

    Every layer is factorized except those that are smaller dense; :class:`PFedParaConfig` tells about the classifier. Biases,
    normalisation and dense layers are averaged. All clients begin with the same factors, personal ones included. γ is 0.5 as in the
    paper's experiments, where a client sends 3.4 times less than the whole network.

    Differs from the paper: it factorizes every layer of networks of two linear layers. A classifier behind convolutions stays dense here
    by default: factorized, with hundreds of inputs of unit size, it diverges at rates that suit the other layers.
    """

    config: PFedParaConfig
    title: ClassVar[str] = "pFedPara"
    paper: ClassVar[str] = "Hyeon-Woo et al., ICLR 2022, section 2.3, Algorithm 2"
    travels: ClassVar[str] = "the factors of the first inner weight of each layer, biases and normalisation, both ways"
    stays: ClassVar[str] = "the factors of the second inner weight of each layer; the classifier too, with personal_classifier"
    default_tiers: ClassVar[tuple[float, ...]] = (0.5,)
    personalised: ClassVar[bool] = True

    def made(self, shape: Shape, rank: int) -> nn.Module:
        """Return W₁ ⊙ (W₂ + 1)."""
        return HadamardWeight(shape, rank, plus_one=True)

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the second inner weights' factors, and of a personal classifier."""
        weights = composed_weights(network, HadamardWeight)
        factors = {f"{name}.{key}" for name, w in weights.items() for key, _ in w.named_parameters() if key.endswith("2")}
        if not self.config.personal_classifier:
            return frozenset(factors)
        names = list(network.state_dict())
        layers = [name for name, _ in weighted_layers(network)] + [name.rpartition(".")[0] for name in weights]
        classifier = next(layer for layer in layers if names[-1].startswith(f"{layer}."))
        return frozenset(factors | {name for name in names if name.startswith(f"{classifier}.")})

    def ranks(self, network: nn.Module, tier: Tier) -> dict[str, int]:
        """Return the ranks of the weights that are smaller in factors."""
        classifier = self.config.classifier
        if classifier is None:
            classifier = not any(isinstance(layer, nn.Conv2d) for _, layer in weighted_layers(network))
        return factorized_ranks(candidates(network, linear=True, classifier=classifier), tier.ratio, "pfedpara")
