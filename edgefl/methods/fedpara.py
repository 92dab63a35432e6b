"""FedPara and pFedPara: every weight is the Hadamard product of two low-rank ones, whose factors are trained."""

import abc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.gradient import gradients
from edgefl.factor.hadamard import Shape, jacobian_gap, rank_of, rank_range
from edgefl.factor.hadamard_layers import RECURRENT, HadamardWeight, composed, composed_weights
from edgefl.methods.base import MethodConfig, cross_entropy
from edgefl.methods.fedavg import FedAvg
from edgefl.models.base import Architecture, replace_layer, stem_and_classifier, weighted_layers
from edgefl.records import Batch, Tier
from edgefl.registry import method

Weights = dict[str, Shape]


class FedParaConfig(MethodConfig):
    """Options of FedPara.

    Attributes:
        linear: whether linear layers before the classifier are factorized too; None: if convolutions hold less than half of the weights
            that may be factorized. The paper's VGG16 has factorized convolutions and dense linear layers.
        tanh: whether each inner weight goes through tanh before the product (appendix B, and the paper's runs).
        jacobian: λ of λ/2·‖W′ − (W − ηJ_W)‖₂ for every weight (Eq. 9); 1 in the paper's runs. It costs a second backward pass.
        jacobian_step: η of Eq. 9.
    """

    linear: bool | None = None
    tanh: bool = False
    jacobian: float = Field(0.0, ge=0, allow_inf_nan=False)
    jacobian_step: float = Field(0.1, gt=0, allow_inf_nan=False)


class Factored(FedAvg):
    """FedAvg of the factors of weights; devices run the plain dense network."""

    weight: ClassVar[type[nn.Module]] = HadamardWeight
    tier_meaning: ClassVar[str] = "one tier only: γ, where every layer's rank lies between full-rank capacity and dense size"

    @abc.abstractmethod
    def ranks(self, network: nn.Module, tier: Tier) -> dict[str, int]:
        """Return weight → rank of ``network``'s factorized weights, or raise :class:`ConfigError` if no layer can be factorized."""

    def made(self, shape: Shape, rank: int) -> nn.Module:
        """Return a factorized weight."""
        return self.weight(shape, rank)

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if no layer can be factorized."""
        self.ranks(architecture.skeleton(), tiers[0])

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network whose weights are composed from factors; normalisation and dense layers are as in the dense one."""
        network = architecture.build()
        return with_weights(network, self.ranks(network, tier), self.made)

    def deployed(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build()

    def composed(self, architecture: Architecture, tier: Tier, network: nn.Module) -> nn.Module:
        return filled(self.deployed(architecture, tier), network, self.weight)


@method("fedpara")
class FedPara(Factored):
    """W = (T₁ ×₁ X₁ ×₂ Y₁) ⊙ (T₂ ×₁ X₂ ×₂ Y₂) of rank up to R² (Propositions 1 and 3); FedAvg of the factors (Algorithm 1).

    R = round((1 − γ)·r_min + γ·r_max) for every layer (section 3.1). Convolutions, recurrent weights (the gates as one matrix) and, by
    the option ``linear``, linear layers are factorized; the classifier never is. A layer stays dense if even r_min takes more numbers,
    or if its convolution has padding other than zeros. Devices run the plain dense network, composed once.

    The default γ is 0.4, the smallest at which the paper's VGG16 is at least as good as the dense one (Table 9: 84.05 against 83.68
    after 200 rounds), with 29 % of its parameters.

    Differs from the paper: the first factors give the composed weight He's variance; the paper only says "He". 1×1 kernels are factorized
    by Proposition 1, because a T of one position adds numbers and no rank. tanh and the Jacobian correction, which are optional there,
    are off by default. J_W is a constant in the correction's own gradient.
    """

    config: FedParaConfig
    title: ClassVar[str] = "FedPara"
    paper: ClassVar[str] = "Hyeon-Woo et al., ICLR 2022, Propositions 1 and 3, Algorithm 1"
    travels: ClassVar[str] = "the factors of both inner weights of each factorized layer and the dense rest, both ways"
    default_tiers: ClassVar[tuple[float, ...]] = (0.4,)

    def ranks(self, network: nn.Module, tier: Tier) -> dict[str, int]:
        """Return the ranks of section 3.1."""
        return factorized_ranks(candidates(network, self.config.linear), tier.ratio, "fedpara")

    def made(self, shape: Shape, rank: int) -> nn.Module:
        """Return the product, with ``tanh`` of transformed inner weights."""
        return HadamardWeight(shape, rank, tanh=self.config.tanh)

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return cross-entropy and, with ``jacobian``, the correction of Eq. 9 summed over the factorized weights."""
        if not self.config.jacobian:
            return cross_entropy(module(batch.x), batch)
        parts = hadamard_weights(module)
        weights = [part() for part in parts]
        with _given(parts, weights):
            loss = cross_entropy(module(batch.x), batch)
        for part, gradient in zip(parts, gradients(loss, weights, keep=True), strict=True):
            gap = jacobian_gap(part.compose, list(part.parameters()), gradient, self.config.jacobian_step)
            loss = loss + self.config.jacobian / 2 * gap
        return loss


def candidates(network: nn.Module, linear: bool | None, classifier: bool = False) -> Weights:
    """Return the weights that may be factorized, name → shape: of convolutions, recurrent and, with ``linear``, linear layers."""
    # None: linear layers count if convolutions hold less than half of all weights that may be factorized.
    last = stem_and_classifier(network)[1]
    found: dict[str, Tensor] = {}
    convolutions = 0
    for name, layer in network.named_modules():
        if type(layer) in RECURRENT and not layer.proj_size:
            found |= {f"{name}.{key}": value for key, value in layer.named_parameters() if key.startswith("weight")}
    linears: dict[str, Tensor] = {}
    for name, layer in weighted_layers(network):
        if name == last and not classifier:
            continue
        if isinstance(layer, nn.Linear):
            linears[f"{name}.weight"] = layer.weight
        elif layer.padding_mode == "zeros":
            found[f"{name}.weight"] = layer.weight
            convolutions += layer.weight.numel()
    rest = sum(weight.numel() for weight in [*found.values(), *linears.values()]) - convolutions
    if linear or (linear is None and convolutions < rest):
        found |= linears
    return {name: tuple(found[name].shape) for name in network.state_dict() if name in found and found[name].requires_grad}


def factorized_ranks(weights: Mapping[str, Shape], gamma: float, who: str) -> dict[str, int]:
    """Return name → R of the weights that are smaller in factors, or raise :class:`ConfigError` if none is."""
    ranks = {name: rank for name, shape in weights.items() if (rank := rank_of(shape, gamma))}
    if not ranks:
        sizes = "; ".join(
            f"{name} {'x'.join(map(str, shape))} needs rank {rank_range(shape)[0]}, at most {rank_range(shape)[1]} is smaller"
            for name, shape in weights.items()
        )
        raise ConfigError(f"{who} finds no layer that is smaller in factors: {sizes or 'there is none besides the classifier'}")
    return ranks


def with_weights(network: nn.Module, ranks: Mapping[str, int], make: Callable[[Shape, int], nn.Module]) -> nn.Module:
    """Return ``network`` with ``make(shape, rank)`` in the place of the weights that ``ranks`` names."""
    shapes = {name: tuple(network.get_parameter(name).shape) for name in ranks}
    for layer in dict.fromkeys(name.rpartition(".")[0] for name in ranks):
        keys = [name for name in ranks if name.rpartition(".")[0] == layer]
        parts = {name.rpartition(".")[2]: make(shapes[name], ranks[name]) for name in keys}
        replace_layer(network, layer, composed(network.get_submodule(layer), parts))
    return network


@torch.no_grad()
def filled(dense: nn.Module, network: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """Return ``dense`` with the weights of ``network``, those of ``kind`` composed, in evaluation mode."""
    weights = composed_weights(network, kind)
    plain = {name: value for name, value in network.state_dict().items() if name.rpartition(".")[0] not in weights}
    dense.load_state_dict({**plain, **{name: weight() for name, weight in weights.items()}})
    return dense.eval()


def hadamard_weights(network: nn.Module) -> list[HadamardWeight]:
    """Return the composed weights of ``network``, in its order."""
    return [module for module in network.modules() if isinstance(module, HadamardWeight)]


@contextmanager
def _given(parts: list[HadamardWeight], weights: list[Tensor]) -> Iterator[None]:
    """Make ``parts`` return ``weights``, so that the loss has derivatives by them."""
    for part, weight in zip(parts, weights, strict=True):
        part.given = weight
    try:
        yield
    finally:
        for part in parts:
            part.given = None


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
