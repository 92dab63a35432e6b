"""Last blocks: a tier is how much of the network a client trains, from the last block back; the rest is frozen."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from edgefl.methods.networks import skeleton
from edgefl.methods.options import MethodConfig
from edgefl.methods.personal import Personal, Receives
from edgefl.methods.state import Shape, travelling_shapes
from edgefl.models.base import Architecture, scaled
from edgefl.models.norm import BatchStatisticsNorm, StaticBatchNorm
from edgefl.records import Batch, Tier
from edgefl.registry import method


class LastBlocksConfig(MethodConfig):
    """Options of last blocks.

    Attributes:
        tiers: the run's tiers. The blocks that none of them trains never travel. Set by the run.
    """

    tiers: tuple[float, ...] = (1.0, 0.5, 0.25)


@method("last-blocks")
class LastBlocks(Receives, Personal):
    """A client of tier p computes the whole network, and trains its last ⌈p·n⌉ of n blocks. Tensors are averaged over their trainers.

    The frozen blocks run forward only: autograd saves nothing for them, and they have no gradients or optimizer state. The fewer blocks are
    trained, the less memory training needs. Inference costs the same in all tiers, because every device runs the whole network. Blocks are
    those of DepthFL, found by tracing (:mod:`edgefl.models.cuts`). A weight that is also used in a frozen block is frozen.

    Frozen modules are in evaluation mode even in training: Dropout is off, and torch's BatchNorm uses its running statistics unchanged.
    Static BatchNorm and that of the policy ``batch`` have no statistics in training, so they use those of the batch.

    A client sends only what it trains. It receives all tensors that some tier of the run trains, as larger tiers change the blocks that it
    has frozen. Blocks that no tier trains are part of the application, with their initial weights. They cost memory and MACs, but no
    bytes: they are never sent. Such a run makes sense with pretrained weights.

    Differs from the paper: CoCoFL freezes arbitrary blocks in each round, and quantizes them. Here the first blocks are frozen, in float32.
    """

    config: LastBlocksConfig
    title = "Last blocks"
    paper = "baseline; CoCoFL (Pfeiffer et al., TMLR 2023) freezes blocks, too"
    tier_meaning = (
        "share p of the network's blocks that a client trains, from the last one back, rounded up; the others are frozen"
    )
    travels = "what some tier trains comes down, what the client trains goes up"
    stays = "blocks that no tier trains: they are part of the application"
    stored = False
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "cost grows with the tier": "every tier has the whole network: its parameters and the MACs of a forward pass are the same",
        **{
            f"entries that nobody covered keep their value [{kind}]": "a client receives frozen tensors and does not send them back: "
            "the smallest tier alone does not cover all its places"
            for kind in ("cnn", "static")
        },
    }

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if a tier is below 1 and the network has one block only."""
        architecture.cuts.check_several(f"{self.title} cannot freeze a part of {architecture.model}", min(tiers).ratio)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the whole network, in which the parameters of the first blocks require no gradients.

        It has three more attributes: the names of its ``frozen`` tensors, the names of those ``shipped`` with the application, and the
        paths of modules ``at_rest`` (in evaluation mode).
        """
        network = architecture.build()
        frozen, at_rest = _frozen(architecture, network, tier)
        for name, parameter in network.named_parameters(remove_duplicate=False):
            if name in frozen:
                parameter.requires_grad_(False)
        network.frozen = frozen  # type: ignore[assignment]
        network.at_rest = at_rest  # type: ignore[assignment]
        network.shipped = _frozen(architecture, network, Tier(max(self.config.tiers)))[0] & frozen  # type: ignore[assignment]
        return network

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the tensors that no tier trains."""
        shipped: frozenset[str] = network.shipped  # type: ignore[assignment]
        return shipped

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        frozen: frozenset[str] = module.frozen  # type: ignore[assignment]
        return {name: tensor for name, tensor in super().upload(module).items() if name not in frozen}

    def received_shapes(self, architecture: Architecture, tier: Tier) -> dict[str, Shape]:
        network = skeleton(self, architecture, tier)
        shipped = self.personal(network)
        return {name: shape for name, shape in travelling_shapes(network).items() if name not in shipped}

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        at_rest: tuple[str, ...] = module.at_rest  # type: ignore[assignment]
        for path in at_rest:
            part = module.get_submodule(path)
            part.training = module.training and isinstance(part, (BatchStatisticsNorm, StaticBatchNorm))
        return super().local_loss(module, batch)


def _frozen(architecture: Architecture, network: nn.Module, tier: Tier) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of the tensors that a client of ``tier`` does not train, and the paths of the modules of its frozen blocks."""
    cuts = architecture.cuts
    trained = scaled(cuts.blocks, tier.ratio)
    if trained == cuts.blocks:
        return frozenset(), ()
    cut = cuts.cuts[cuts.blocks - trained - 1]
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)} & cut.read
    of_rest = [(path, network.get_submodule(path)) for path in sorted(cut.ended)]
    buffers = {f"{path}.{name}".lstrip(".") for path, module in of_rest for name, _ in module.named_buffers(recurse=False)}
    return frozenset(parameters | buffers), tuple(path for path, _ in of_rest)
