"""The form of each layer of a network under a method, tier by tier: factorized at which rank, cut to which channels, or dense, and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from edgefl.client.training import OptimizerName
from edgefl.factor.adapter import PART
from edgefl.factor.layers import LowRank
from edgefl.factor.svd import unroll
from edgefl.methods.adapters import Adapted
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Factorizes
from edgefl.methods.create import create
from edgefl.methods.factored_weights import Factored
from edgefl.methods.layer_rules import KINDS, OUTSIDE, kept_layers, rules_of
from edgefl.methods.networks import skeleton
from edgefl.methods.pufferfish import Pufferfish
from edgefl.models.base import Architecture, stem_and_classifier
from edgefl.models.custom import CustomArchitecture
from edgefl.planning.layer_facts import ENDS, NO_GAIN, REASONS, channels_of, costs_of, kind_of_layer, output_of, shape_of
from edgefl.planning.network import GivenInputs, Network, architecture_of
from edgefl.planning.profile import batch_size_of, check_together, method_and_tiers, training_for
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Cost, Tier
from edgefl.registry import Options
from edgefl.report.inspected import Form, InspectedLayer, Inspection, LayerAtTier, TierTotal
from edgefl.util.compute import one_thread
from edgefl.util.convolutions import Convolution


@one_thread()
def inspect(
    network: Network,
    inputs: GivenInputs = None,
    classes: int | None = None,
    *,
    method: str | None = None,
    method_options: Options | None = None,
    tiers: Sequence[float] | None = None,
    batch_size: int | None = None,
    optimizer: OptimizerName = "momentum",
    norm: str | None = None,
) -> Inspection:
    """Return what ``method`` does with every layer of ``network`` in every tier, and why; arguments are those of :func:`edgefl.profile`.

    Raises:
        InputError: a name is unknown, a tier is outside (0, 1], the network refuses the input, or the method
            cannot train it with these tiers together.

    Example:
        >>> found = inspect("cnn-digits", (1, 8, 8), method="fedhm", tiers=(1, 0.25))
        >>> [(row.layer, row.tiers[1].rank, row.tiers[1].why) for row in found.layers if row.channels]
        [('conv1', None, 'stem'), ('conv2', 16, ''), ('conv3', 16, ''), ('fc', None, 'classifier')]
    """
    batch_size = batch_size_of(batch_size, inputs)
    architecture = architecture_of(network, inputs, classes, norm)
    chosen, ratios = method_and_tiers(method, method_options, tiers)
    training = replace(training_for(batch_size, None, optimizer), clip_gradient=chosen.clip_gradient)
    if isinstance(chosen, Pufferfish):
        chosen = chosen.after_warmup()
    costs = {tier: tier_cost(chosen, architecture, tier, training) for tier in map(Tier, ratios)}
    check_together(chosen, architecture, costs)
    inspected = _Inspected(chosen, architecture, costs)
    rows = inspected.rows(inspected.whole or tier_cost(create("fedavg"), architecture, Tier(1.0), training))
    totals = []
    for number, (tier, cost) in enumerate(costs.items()):
        forms = Counter(row.tiers[number].form for row in rows if row.channels)
        figures = cost.params, cost.macs_forward, cost.macs_train_step, cost.training_memory_bytes, cost.uncounted_ops
        totals.append(TierTotal(tier.number, *figures, dict(forms)))
    return Inspection(architecture.model, method, batch_size, rows, tuple(totals), inspected.notes(rows))


@dataclass(frozen=True)
class _Inspected:
    """A network under a method, and the networks of its tiers."""

    method: Method
    architecture: Architecture
    costs: Mapping[Tier, Cost]

    @cached_property
    def dense(self) -> nn.Module:
        return self.architecture.skeleton()

    @cached_property
    def layers(self) -> dict[str, nn.Module]:
        """All modules that have parameters; one with parts inside, such as attention, stands for them."""
        modules: dict[str, nn.Module] = {}
        for name, module in self.dense.named_modules():
            inside = any(
                name.startswith(f"{other}.") for other, kind in modules.items() if isinstance(kind, nn.MultiheadAttention)
            )
            if not inside and any(True for _ in module.parameters(recurse=False)):
                modules[name] = module
        return modules

    @cached_property
    def networks(self) -> dict[Tier, nn.Module]:
        return {tier: skeleton(self.method, self.architecture, tier) for tier in self.costs}

    @cached_property
    def parts(self) -> dict[Tier, dict[str, list[str]]]:
        """Tier → layer → its paths: one, several in a network of several small ones, none in one that is too shallow for it."""
        parts: dict[Tier, dict[str, list[str]]] = {}
        first = next(iter(self.layers))
        for tier, network in self.networks.items():
            paths = [path for path, module in network.named_modules() if any(True for _ in module.parameters())]
            outer = [""] if first in paths else [path[: -len(first)] for path in paths if path.endswith(f".{first}")]
            parts[tier] = {name: [path for prefix in outer if (path := prefix + name) in paths] for name in self.layers}
        return parts

    def small(self, name: str, tier: Tier) -> nn.Module | None:
        """Return a layer of the tier's network, None if that is too shallow to have it."""
        paths = self.parts[tier][name]
        return self.networks[tier].get_submodule(paths[0]) if paths else None

    @cached_property
    def reasons(self) -> Mapping[str, str]:
        return self.method.dense_reasons(self.dense) if isinstance(self.method, Factorizes) else {}

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Layer → why it is not factorized, of a method that factorizes layers and gives no reasons of its own."""
        if self.reasons or not any(self.form(name, tier) == "factorized" for tier in self.costs for name in self.layers):
            return {}
        stem, classifier = stem_and_classifier(self.dense)
        kinds = {name: kind_of_layer(layer) for name, layer in self.layers.items()}
        without_rule = {name: "no rule" for name, kind in kinds.items() if kind in ("1x1", "depthwise", "grouped")}
        ends = {stem: "stem", classifier: "classifier"}
        return without_rule | kept_layers(self.dense) | {name: why for name, why in ends.items() if name is not None}

    @cached_property
    def ranks(self) -> dict[Tier, dict[str, int]]:
        """The ranks of methods that compose weights: layer → the largest of its weights."""
        by_tier: dict[Tier, dict[str, int]] = {tier: {} for tier in self.costs}
        if isinstance(self.method, Factored):
            for tier, ranks in by_tier.items():
                for weight, rank in self.method.ranks(self.dense, tier).items():
                    name = weight.rpartition(".")[0]
                    ranks[name] = max(rank, ranks.get(name, 0))
        return by_tier

    @cached_property
    def channels(self) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        """Layer → the others that return the same channels; and layer → why it returns all of its channels in every tier."""
        if not any(self.form(name, tier) == "cut" for tier in self.costs for name in self.layers):
            return {}, {}
        if not isinstance(self.architecture, CustomArchitecture):
            return {}, {stem_and_classifier(self.dense)[1]: "output"}
        weights = {output_of(name, layer): name for name, layer in self.layers.items() if channels_of(layer)}
        tied: dict[str, tuple[str, ...]] = {}
        whole: dict[str, str] = {}
        for group in self.architecture.channels.groups():
            names = [weights[tensor] for tensor in group.tensors if tensor in weights]
            for name in names:
                if group.whole:
                    whole[name] = group.whole
                else:
                    tied[name] = tuple(dict.fromkeys(other for other in (*tied.get(name, ()), *names) if other != name))
        return tied, {name: why for name, why in whole.items() if name not in tied}

    def form(self, name: str, tier: Tier) -> Form:
        """Return what became of a layer."""
        dense, small = self.layers[name], self.small(name, tier)
        if small is None:
            return "absent"
        shapes = [{key: value.shape for key, value in layer.named_parameters()} for layer in (dense, small)]
        if type_before_parametrizations(dense) is not type_before_parametrizations(small) or shapes[0].keys() != shapes[1].keys():
            return "factorized"
        if shapes[0] != shapes[1]:
            return "cut"
        trained = [any(value.requires_grad for value in layer.parameters()) for layer in (dense, small)]
        return "frozen" if trained == [True, False] else "dense"

    @property
    def whole(self) -> Cost | None:
        """The cost of a tier that has the network as it is, None if there is no such tier."""
        names = {name: [name] for name in self.layers}
        plain = (tier for tier in self.costs if self.parts[tier] == names)
        return next((self.costs[tier] for tier in plain if all(self.form(name, tier) == "dense" for name in names)), None)

    def rows(self, whole: Cost) -> tuple[InspectedLayer, ...]:
        """Return a row per layer; ``whole`` is the cost of the network as it is."""
        return tuple(
            InspectedLayer(
                layer=name,
                kind=kind_of_layer(layer) if name else "network",
                shape=shape_of(layer),
                channels=channels_of(layer),
                **costs_of(whole, [name]),
                tied_with=self.channels[0].get(name, ()),
                tiers=tuple(self._at(name, tier) for tier in self.costs),
            )
            for name, layer in self.layers.items()
        )

    def _at(self, name: str, tier: Tier) -> LayerAtTier:
        form, small = self.form(name, tier), self.small(name, tier)
        rank = None
        if form == "factorized":
            pair = getattr(small, PART, small)
            factors = list(pair.children()) if isinstance(pair, LowRank) else []
            rank = shape_of(factors[0])[0] if factors else self.ranks[tier].get(name)
        why = "" if tier.ratio == 1 or form == "factorized" else self._why(name, form)
        channels = channels_of(self.layers[name] if small is None or form == "factorized" else small)
        figures = costs_of(self.costs[tier], self.parts[tier][name])
        return LayerAtTier(tier.number, form, rank, channels, **figures, why=why, reason=self._reason(name, why))

    def _why(self, name: str, form: Form) -> str:
        tied, whole = self.channels
        if form in ("absent", "frozen"):
            return "depth" if form == "absent" else "base" if isinstance(self.method, Adapted) else "early block"
        if self.reasons:
            known = self.reasons.get(name)
            return NO_GAIN if known == "" else known or "no rule"
        if name in self.left_out:
            return self.left_out[name]
        if name in whole:
            return whole[name].partition(" in ")[0]
        return "tied" if form == "cut" and tied.get(name) else ""

    def _reason(self, name: str, why: str) -> str:
        tied, whole = self.channels
        layer = self.layers[name]
        if why == NO_GAIN and isinstance(layer, Convolution | nn.Linear) and not isinstance(self.method, Factored):
            m, n = unroll(layer.weight).shape
            return (
                f"{REASONS[why]}, which takes a rank below m·n/(m + n): {m * n / (m + n):.4g} for a weight unrolled to {m} × {n}"
            )
        if why == "tied":
            return f"cut together with {', '.join(tied[name])}"
        if name in self.left_out and why in ENDS:
            return f"{ENDS[why]}, which this method does not factorize"
        if why and why not in REASONS:
            return f"the operation {whole.get(name, why)} needs all of its channels"
        return REASONS.get(why, "")

    def notes(self, rows: Sequence[InspectedLayer]) -> tuple[str, ...]:
        """Return remarks on 1×1 convolutions that are factorized, or dense, without the user's choice."""
        phase = ("ranks and costs are those after the warm-up, in which all layers are dense",) * isinstance(
            self.method, Pufferfish
        )
        if not self.reasons or any(word in KINDS for word in rules_of(self.method.config).split(",")):
            return phase
        small = [row for row in rows if row.kind == "1x1" and self.reasons.get(row.layer) in ("", OUTSIDE)]
        chosen = [row for row in small if self.reasons[row.layer] == ""]
        if small and chosen and not isinstance(self.method, Factored):
            return (*phase, "1x1 convolutions are factorized because no other layer can be; the option factorize chooses layers")
        if small and not chosen:
            share = sum(row.parameter_bytes for row in small) / max(1, sum(row.parameter_bytes for row in rows))
            option = "--method-option factorize=conv,linear,1x1 factorizes them"
            return (*phase, f"{len(small)} 1x1 convolutions with {share:.0%} of the weights stay dense; {option}")
        return phase
