"""Capabilities of methods that add terms to the loss, such as the Frobenius decay of factors in place of weight decay."""

import abc
from collections.abc import Iterable

from pydantic import Field
from torch import Tensor, nn

from edgefl.factor.layers import all_but_factors, frobenius_sq, low_rank_layers
from edgefl.methods.base import Method
from edgefl.methods.options import MethodConfig
from edgefl.records import Batch


class Penalised(Method, abc.ABC):
    """The loss has regularisers of weights."""

    @abc.abstractmethod
    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return the scalars that are added to the loss."""

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch, plus :meth:`penalties`."""
        return sum(self.penalties(module), super().local_loss(module, batch))

    def decayed(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that the optimizer's weight decay acts on: by default all."""
        return list(module.parameters())


class FrobeniusConfig(MethodConfig):
    """Options of methods with Frobenius decay.

    Attributes:
        frobenius_decay: λ of λ/2·‖UVᵀ‖²_F, in place of weight decay on factorized layers.
    """

    frobenius_decay: float = Field(1e-4, ge=0, allow_inf_nan=False)


class FrobeniusDecay(Penalised):
    """Factors have Frobenius decay in place of weight decay."""

    config: FrobeniusConfig

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return λ/2·‖UVᵀ‖²_F of each factorized layer."""
        decay = self.config.frobenius_decay
        return (decay / 2 * frobenius_sq(layer) for layer in low_rank_layers(module) if decay)

    def decayed(self, module: nn.Module) -> list[nn.Parameter]:
        """Return every parameter except the factors, which have Frobenius decay."""
        return all_but_factors(module)


def decayed(method: Method, module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of ``module`` that the optimizer's weight decay acts on."""
    return method.decayed(module) if isinstance(method, Penalised) else list(module.parameters())
