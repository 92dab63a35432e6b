"""FedDF: tiers may be different networks, which the server joins by distilling the mean of the clients' outputs into each of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, softmax

from edgefl.errors import ConfigError
from edgefl.methods.axes import Need
from edgefl.methods.capabilities import Distilled, Distils
from edgefl.methods.networks import cut_out, filled, upload_shapes
from edgefl.methods.options import MethodConfig, Scenario
from edgefl.methods.state import GlobalState, copied
from edgefl.models.base import Architecture, load
from edgefl.models.norm import needs_statistics
from edgefl.records import Place, Submodel, Tier, Update
from edgefl.registry import method
from edgefl.rng import torch_seeded
from edgefl.util.fields import first, rows


class FedDFConfig(MethodConfig):
    """Options of FedDF.

    Attributes:
        public_share: share of the training samples that no client has, and that the server distils on, without their labels.
        server_steps: steps of the server in a round, for each tier.
        server_batch: samples of such a step, at most all public ones.
        server_lr: learning rate of Adam at the first step; it falls to 0 along a cosine within the round.
        scenario: how the clients differ. Set by the run.
    """

    public_share: float = Field(0.1, gt=0, lt=1)
    server_steps: int = Field(100, ge=1)
    server_batch: int = Field(128, ge=1)
    server_lr: float = Field(1e-3, gt=0)
    scenario: Scenario = "alike"


@method("feddf")
class FedDF(Distils):
    """θ_p ← mean of tier p's clients by samples; then steps down KL(σ(1/|S| Σ_k f(x; θ_k)) ‖ σ(f(x; θ_p))) (Lin et al. 2020, Algorithm 3).

    σ is the softmax. The teachers are the networks of all clients S of the round, of every tier, as they arrived, each with the same
    weight. Their logits f are averaged on public samples x. Tiers share no tensor, so each may be another network (``--tier``); otherwise
    they are widths of one. A tier without clients in a round learns from the clients of the others; one whose client is the only one of
    the round has nothing to learn. The state has the tensors of the largest tier under their own names, and those of the others under
    ``<tier>/<name>``.

    All tiers take the same batches, from permutations of the public samples. The clients of FedDF have fewer samples than those of other
    methods: public samples are no extra data here.

    Differs from the paper: public samples are a share of the training samples instead of another data set. A round has a fixed number of
    steps instead of stopping early on a validation set. Static BatchNorm has no statistics on the server, so teachers use the batch's.
    """

    config: FedDFConfig
    title = "FedDF"
    paper = "Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020, Algorithm 3"
    tier_meaning = "width of the tier's network, or the name of a network of its own"
    travels = "every weight of the tier's own network, both ways"
    whole = False
    unlike_networks = True
    every_update = "its server learns from the networks of single clients"
    lacks: ClassVar[Mapping[Need, str]] = {
        "tier_means": "its server learns from the networks of single clients, of which a mean is none",
        "stale_updates": "its server learns from the networks of one round",
        "common_model": "every tier has a model of its own: there is no common direction to correct a client's gradient towards",
        "own_loss": "its server distils the class probabilities of logits",
    }

    @property
    def public_share(self) -> float:
        """See :class:`FedDFConfig`."""
        return self.config.public_share

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        if self.config.scenario == "permuted":
            raise ConfigError(
                "permute_labels: a label means another class to every client, and FedDF averages their outputs; leave it out"
            )
        super().check(architecture, tiers, clients)

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        tensors: dict[str, Tensor] = {}
        with torch_seeded(rng):
            for tier in sorted(tiers, reverse=True):
                network = self.network(architecture, tier)
                tensors |= {_target(tiers, tier, name): tensor for name, tensor in copied(network).items()}
        return GlobalState(architecture, tiers, tensors)

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return the tier's own network."""
        names = upload_shapes(self, state.architecture, tier)
        return cut_out(self, state, tier, {name: Place(_target(state.tiers, tier, name), ()) for name in names})

    def distilled(self, state: GlobalState, updates: Sequence[Update], x: Any, rng: np.random.Generator) -> Distilled:
        """Return the state after the server's steps; they do not depend on the order of ``updates``."""
        steps, size = self.config.server_steps, min(self.config.server_batch, len(first(x)))
        order = [rng.permutation(len(first(x))) for _ in range(-(-steps * size // len(first(x))))]
        used, numbers = torch.unique(torch.from_numpy(np.concatenate(order)[: steps * size]), return_inverse=True)
        x, batches = rows(x, used), numbers.view(steps, size)
        tensors, learning = dict(state.tensors), [tier for tier in state.tiers if [tier] != [update.tier for update in updates]]
        with torch_seeded(rng):
            targets = softmax(self._mean_logits(state, updates, x, size), dim=-1)
            for tier in learning:
                student = self._student(state, tier, x, batches, targets)
                tensors |= {_target(state.tiers, tier, name): tensor for name, tensor in copied(student).items()}
        evaluated = {tier: count * len(used) for tier, count in Counter(update.tier for update in updates).items()}
        return Distilled(state.replace(tensors), evaluated, dict.fromkeys(learning, steps * size))

    @torch.no_grad()
    def _mean_logits(self, state: GlobalState, updates: Sequence[Update], x: Any, size: int) -> Tensor:
        """Return the mean of the clients' logits for samples ``x`` (n, …), computed ``size`` at a time: (n, labels, classes)."""
        parts, total = torch.arange(len(first(x))).split(size), torch.zeros(())
        for update in sorted(updates, key=lambda update: (update.tier, update.client)):
            teacher = filled(self, state, update.tier)
            load(teacher, {**teacher.state_dict(), **update.tensors})
            teacher.train(needs_statistics(teacher))
            total = total + torch.cat([_logits(teacher, rows(x, part)) for part in parts]).double()
        return (total / len(updates)).float()

    def _student(self, state: GlobalState, tier: Tier, x: Any, batches: Tensor, targets: Tensor) -> nn.Module:
        """Return the tier's network after a step for each of the ``batches`` (steps, batch) towards the ``targets``."""
        student = filled(self, state, tier).train()
        optimizer = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], self.config.server_lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
        for batch in batches:
            optimizer.zero_grad()
            logs, wanted = log_softmax(_logits(student, rows(x, batch)), dim=-1), targets[batch]
            (kl_div(logs, wanted, reduction="sum") / wanted[..., 0].numel()).backward()
            optimizer.step()
            schedule.step()
        return student


def _target(tiers: Sequence[Tier], tier: Tier, name: str) -> str:
    """Return the name in the state of a tensor of the network of ``tier``."""
    return name if tier == max(tiers) else f"{tier.label}/{name}"


def _logits(network: nn.Module, x: Any) -> Tensor:
    """Return the logits for samples ``x`` (batch, …): (batch, labels, classes)."""
    logits: Tensor = network(x)
    return logits.view(len(first(x)), -1, logits.shape[-1])
