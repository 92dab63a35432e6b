"""FedPara: every weight is the Hadamard product of two low-rank matrices. Their factors are trained and averaged."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import Field
from torch import Tensor, nn

from edgefl.factor.gradient import gradients
from edgefl.factor.hadamard import Init, Shape, jacobian_gap
from edgefl.factor.hadamard_layers import HadamardWeight, composed_weights
from edgefl.methods.factored_weights import Factored, candidates, dense_reasons, factorized_ranks
from edgefl.methods.layer_rules import FactorizingConfig
from edgefl.methods.losses import cross_entropy
from edgefl.methods.options import PersonalClassifierConfig
from edgefl.methods.personal import Personal
from edgefl.models.base import weighted_layers
from edgefl.records import Batch, Tier
from edgefl.registry import method
from edgefl.util.convolutions import Convolution


class FedParaConfig(FactorizingConfig):
    """Options of FedPara.

    Attributes:
        linear: whether linear layers before the classifier are factorized. None: only if convolutions hold less than half of the weights
            that may be factorized. The paper's VGG16 has factorized convolutions and dense linear layers. The option ``factorize``
            replaces this one.
        tanh: whether tanh is applied to each inner weight before the product (appendix B). The paper's runs do so.
        jacobian: λ of λ/2·‖W′ − (W − ηJ_W)‖₂ for every weight (Eq. 9). The paper's runs have 1. It costs a second backward pass.
        jacobian_step: η of Eq. 9.
        init: the size of the first factors. ``he``: composed weights have He's variance. ``authors``: each factor has He's variance for its
            own fan-in, as in the authors' notebook. Composed weights are then 30 to 120 times smaller. Behind a normalisation that only
            changes the learning rate that suits.
    """

    linear: bool | None = None
    tanh: bool = False
    jacobian: float = Field(0.0, ge=0, allow_inf_nan=False)
    jacobian_step: float = Field(0.1, gt=0, allow_inf_nan=False)
    init: Init = "he"


@method("fedpara")
class FedPara(Factored):
    """W = (T₁ ×₁ X₁ ×₂ Y₁) ⊙ (T₂ ×₁ X₂ ×₂ Y₂) of rank up to R² (Propositions 1 and 3); FedAvg of the factors (Algorithm 1).

    :mod:`edgefl.factor.hadamard` explains the symbols. Every layer has R = round((1 − γ)·r_min + γ·r_max) (section 3.1). These are
    factorized: convolutions, recurrent weights (all gates as one matrix) and, with the option ``linear``, linear layers, but never the
    classifier. A layer stays dense if its factors would be larger even at r_min. Devices run the plain dense network, composed once.

    The default γ is 0.4, the smallest at which the paper's VGG16 is at least as accurate as the dense network: Table 9 has 84.05 against
    83.68 % after 200 rounds. VGG16 then has 29 % of the dense network's parameters.

    Differs from the paper: initial factors give the composed weight He's variance (``init``); the paper only says "He". 1×1 kernels are
    factorized by Proposition 1, because a T of one position adds values and no rank. tanh and the Jacobian correction are off by default.
    The gradient of the correction treats J_W as a constant.
    """

    config: FedParaConfig
    title = "FedPara"
    paper = "Hyeon-Woo et al., ICLR 2022, Propositions 1 and 3, Algorithm 1"
    travels = "the factors of both inner weights of each factorized layer and the dense rest, both ways"
    default_tiers = (0.4,)

    def dense_reasons(self, network: nn.Module) -> Mapping[str, str]:
        return dense_reasons(network, self.config.linear, rules=self.config.factorize)

    def ranks(self, network: nn.Module, tier: Tier) -> dict[str, int]:
        return factorized_ranks(candidates(network, self.config.linear, rules=self.config.factorize), tier.ratio, "fedpara")

    def made(self, shape: Shape, rank: int) -> nn.Module:
        """Return W₁ ⊙ W₂, or with ``tanh`` tanh(W₁) ⊙ tanh(W₂)."""
        return HadamardWeight(shape, rank, tanh=self.config.tanh, init=self.config.init)

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy plus, with ``jacobian``, the correction of Eq. 9 summed over all factorized weights."""
        if not self.config.jacobian:
            return cross_entropy(module(batch.x), batch)
        parts = [part for part in module.modules() if isinstance(part, HadamardWeight)]
        weights = [part() for part in parts]
        with _given(parts, weights):
            loss = cross_entropy(module(batch.x), batch)
        for part, gradient in zip(parts, gradients(loss, weights, keep=True), strict=True):
            gap = jacobian_gap(part.compose, list(part.parameters()), gradient, self.config.jacobian_step)
            loss = loss + self.config.jacobian / 2 * gap
        return loss


class PFedParaConfig(FactorizingConfig, PersonalClassifierConfig):
    """Options of pFedPara.

    Attributes:
        classifier: whether the classifier is factorized too. None: only if the network has no convolutions.
    """

    classifier: bool | None = None


@method("pfedpara")
class PFedPara(Personal, Factored):
    """W = W₁ ⊙ (W₂ + 1): X₁, Y₁ (and T₁) are averaged; X₂, Y₂ (and T₂) never leave their client (section 2.3, Algorithm 2).

    Every layer is factorized, unless its factors would be larger than its weight; the option ``classifier`` decides about the classifier.
    Biases, normalisation and dense layers are averaged. All clients begin with the same factors, personal ones included. The default γ
    of 0.5 is that of the paper's experiments, where a client sends 3.4 times less than the whole network.

    Differs from the paper: its networks have two linear layers, both factorized. Here a classifier behind convolutions stays dense by
    default. A factorized classifier with hundreds of inputs of unit size diverges at learning rates that suit the other layers.
    """

    config: PFedParaConfig
    title = "pFedPara"
    paper = "Hyeon-Woo et al., ICLR 2022, section 2.3, Algorithm 2"
    travels = "the factors of the first inner weight of each layer, biases and normalisation, both ways"
    stays = "the factors of the second inner weight of each layer; the classifier too, by default with permuted labels or several data sets"
    default_tiers = (0.5,)
    personalised = True

    def made(self, shape: Shape, rank: int) -> nn.Module:
        """Return W₁ ⊙ (W₂ + 1)."""
        return HadamardWeight(shape, rank, plus_one=True)

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the factors of every W₂, and of a personal classifier."""
        weights = composed_weights(network, HadamardWeight)
        factors = {f"{name}.{key}" for name, w in weights.items() for key, _ in w.named_parameters() if key.endswith("2")}
        if not self.config.keeps_classifier:
            return frozenset(factors)
        names = list(network.state_dict())
        layers = [name for name, _ in weighted_layers(network)] + [name.rpartition(".")[0] for name in weights]
        classifier = next(layer for name in reversed(names) for layer in layers if name.startswith(f"{layer}."))
        return frozenset(factors | {name for name in names if name.startswith(f"{classifier}.")})

    def _classifier(self, network: nn.Module) -> bool:
        if self.config.classifier is not None:
            return self.config.classifier
        return not any(isinstance(layer, Convolution) for _, layer in weighted_layers(network))

    def dense_reasons(self, network: nn.Module) -> Mapping[str, str]:
        return dense_reasons(network, True, self._classifier(network), self.config.factorize)

    def ranks(self, network: nn.Module, tier: Tier) -> dict[str, int]:
        weights = candidates(network, True, self._classifier(network), self.config.factorize)
        return factorized_ranks(weights, tier.ratio, "pfedpara")


@contextmanager
def _given(parts: list[HadamardWeight], weights: list[Tensor]) -> Iterator[None]:
    """Make ``parts`` return ``weights``, which were composed before, so that autograd can differentiate the loss by them."""
    for part, weight in zip(parts, weights, strict=True):
        part.given = weight
    try:
        yield
    finally:
        for part in parts:
            part.given = None
