"""The contract that every method passes, one test per rule, over every method and tier.

A method lists the rules that cannot hold for it in ``contract_exceptions``, by the rule's words or, where only one kind of network breaks
it, as ``words [kind]``; such a rule must then really fail (strict xfail), so the list cannot outlive its reasons.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from mobile import Mobile

from edgefl.bundle.tier_graphs import same_network
from edgefl.bundle.write import TierFiles, build_tier
from edgefl.client.client import loss_of
from edgefl.client.loop import LocalTraining, optimizer_of, train
from edgefl.client.objectives.none import PLAIN
from edgefl.client.training import Training
from edgefl.errors import AggregationError
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.onnxgrad.macs import count_macs
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Submodel, Tier, Update
from edgefl.registry import methods
from edgefl.rng import generator
from edgefl.wire.payload import decode, encode, payload_bytes

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import parity  # the table of all networks is made by the same function

sys.path.pop(0)

ARCHITECTURES = {
    "cnn": Architecture("cnn-digits", (1, 8, 8), 4),
    "mlp": Architecture("mlp", (1, 8, 8), 4),
    "static": Architecture("cnn-digits", (1, 8, 8), 4, "static"),
}
# Every method, and options that change its networks.
METHODS = {name: create(name) for name in methods.names()} | {
    "prism outputs": create("prism", {"outputs": 0.4}),
    "factorized-fl-beta flat": create("factorized-fl-beta", {"reshape": "flat"}),
}
# Options that change what travels or how the server aggregates, and none of the networks.
AGGREGATIONS = {
    **{f"fedhm {how}": create("fedhm", {"aggregation": how}) for how in ("residual", "bands")},
    "clustered-fl personal classifier": create("clustered-fl", {"personal_classifier": True}),
}
# A network of 1×1 convolutions, which are factorized only if they are named.
ONLY = (("fedhm 1x1", create("fedhm", {"factorize": "conv,linear,1x1"})), ("mobile", Mobile()))
TRAINING = Training(epochs=1, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-4)


@dataclass(frozen=True)
class Case:
    method: Method
    architecture: Architecture
    tiers: tuple[Tier, ...]

    def state(self, seed: int = 0) -> GlobalState:
        return self.method.init(self.architecture, self.tiers, generator(seed, "init"))

    def submodel(self, state: GlobalState, tier: Tier, client: int | None = None) -> Submodel:
        return self.method.submodel(state, tier, generator(0, "submodel"), client)

    def personal(self, tier: Tier) -> dict[str, torch.Tensor]:
        return self.method.first_personal(self.architecture, tier, generator(0, "init"))

    def received(self, submodel: Submodel, x: torch.Tensor, y: torch.Tensor) -> torch.nn.Module:
        """Return the client's network as it is before its first step."""
        module = submodel.build()
        self.method.receive(module, submodel.tensors, self.personal(submodel.tier), (x, y))
        return module

    def update(self, state: GlobalState, tier: Tier, client: int = 0, noise: float = 0.1, samples: int = 10) -> Update:
        submodel = self.submodel(state, tier, client)
        rng = np.random.default_rng(client + 1)
        sent = self.method.upload(self.received(submodel, *images(9, client)))
        tensors = {
            name: tensor + noise * torch.from_numpy(rng.standard_normal(tuple(tensor.shape))).float()
            for name, tensor in sent.items()
        }
        return Update(client, tier, tensors, submodel.places, samples)


RULES: set[str] = set()


def rule(words: str, of_networks: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every method and kind of network; where the method says that it cannot keep the rule, it must fail.

    A rule of networks does not depend on how the server aggregates, nor on what travels.
    """
    RULES.add(words)
    params = []
    every = METHODS if of_networks else METHODS | AGGREGATIONS
    for (name, method), (kind, architecture) in [*itertools.product(every.items(), ARCHITECTURES.items()), ONLY]:
        case = Case(method, architecture, tuple(Tier(ratio) for ratio in method.default_tiers))
        reason = method.contract_exceptions.get(words) or method.contract_exceptions.get(f"{words} [{kind}]")
        marks = [pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True)] if reason else []
        params.append(pytest.param(case, id=f"{name}-{kind}", marks=marks))
    return pytest.mark.parametrize("case", params)


def equal_states(one: GlobalState, other: GlobalState) -> None:
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(other.tensors[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS | AGGREGATIONS)
def test_exceptions_name_rules_that_exist(name):
    exceptions = (METHODS | AGGREGATIONS)[name].contract_exceptions
    assert {words.partition(" [")[0] for words in exceptions} <= RULES
    assert all(len(reason) > 30 for reason in exceptions.values())


@rule("submodel leaves the state untouched")
def test_submodel_leaves_the_state_untouched(case):
    state = case.state()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    for tier in case.tiers:
        for tensor in case.submodel(state, tier).tensors.values():
            tensor.add_(1.0)
    assert all(torch.equal(before[name], state.tensors[name]) for name in before)


@rule("every tier fits its declared size exactly")
def test_every_tier_fits_its_declared_size_exactly(case):
    state = case.state()
    for tier in case.tiers:
        submodel = case.submodel(state, tier, 0)
        declared = case.method.shapes(case.architecture, tier)
        assert {name: tuple(t.shape) for name, t in submodel.tensors.items()} == declared
        assert submodel.places.keys() == submodel.tensors.keys()
        module = case.received(submodel, *images(9, 0))
        sent = case.method.upload(module)
        assert {name: tuple(t.shape) for name, t in sent.items()} == case.method.upload_shapes(case.architecture, tier)
        cost = tier_cost(case.method, case.architecture, tier, TRAINING)
        assert sum(p.numel() for p in module.parameters()) == cost.params
        # Physically small: nothing of the full size is kept behind a smaller view.
        for tensor in submodel.tensors.values():
            assert tensor.untyped_storage().nbytes() == 4 * tensor.numel()
        kept = case.method.keep(module)
        assert {n: t.shape for n, t in kept.items()} == {n: t.shape for n, t in case.personal(tier).items()}
        assert not (kept.keys() & sent.keys()) or case.method.personalised


@rule("cost grows with the tier", of_networks=True)
def test_cost_grows_with_the_tier(case):
    costs = [tier_cost(case.method, case.architecture, tier, TRAINING) for tier in case.tiers]
    names = ["params", "macs_forward", "parameter_bytes"]
    if case.method.shapes(case.architecture, case.tiers[0]):
        names.append("download_bytes")
    if case.architecture.model != "mlp":
        # Where the first layer itself is factorized, its second factor needs an input gradient that the dense layer does without.
        names += ["macs_backward", "macs_train_step"]
    for larger, smaller in itertools.pairwise(costs):
        for name in names:
            assert getattr(larger, name) > getattr(smaller, name), name
    assert all(not cost.uncounted_ops for cost in costs)


@rule("the full tier computes what the global model computes")
def test_the_full_tier_computes_what_the_global_model_computes(case):
    state = case.state()
    x = torch.from_numpy(np.random.default_rng(3).standard_normal((5, 1, 8, 8))).float()
    with torch.no_grad():
        full = case.method.deploy(state, case.tiers[0])(x)
        assert torch.equal(full, case.method.deploy(state, case.method.global_tier(state))(x))
    dense = case.architecture.build(case.method.global_tier(state).ratio).eval()
    if state.tensors.keys() == dense.state_dict().keys():
        dense.load_state_dict(state.tensors)
        with torch.no_grad():
            assert torch.allclose(full, dense(x), atol=1e-6)


@rule("unchanged clients leave the state unchanged")
def test_unchanged_clients_leave_the_state_unchanged(case):
    state = case.state()
    updates = [case.update(state, tier, client, noise=0.0) for client, tier in enumerate(case.tiers)]
    after = case.method.aggregate(state, updates)
    shared = {name: after.tensors[name] for name in state.tensors}
    equal_states(state, after.replace(shared))


@rule("the order of updates does not matter")
def test_the_order_of_updates_does_not_matter(case):
    state = case.state()
    tiers = (case.tiers * 3)[:5]
    updates = [case.update(state, tier, client, samples=3 + 7 * client) for client, tier in enumerate(tiers)]
    one, other = case.method.aggregate(state, updates), case.method.aggregate(state, reversed(updates))
    equal_states(one, other)


@rule("one full-tier client alone wins outright")
def test_one_full_tier_client_alone_wins_outright(case):
    state = case.state()
    update = case.update(state, case.tiers[0])
    after = case.method.aggregate(state, [update])
    assert any(not torch.equal(after.tensors[name], state.tensors[name]) for name in state.tensors)
    for name in update.tensors.keys() & after.tensors.keys():
        torch.testing.assert_close(after.tensors[name], update.tensors[name], rtol=1e-6, atol=1e-7)
    assert update.tensors.keys() & after.tensors.keys()


@rule("entries that nobody covered keep their value")
def test_entries_that_nobody_covered_keep_their_value(case):
    state = case.state()
    smallest = case.tiers[-1]
    update = case.update(state, smallest)
    after = case.method.aggregate(state, [update])
    covered = {name: torch.zeros(t.shape, dtype=torch.bool) for name, t in state.tensors.items()}
    for name, place in update.places.items():
        if name not in update.tensors:
            continue
        region = covered[place.target][place.index]
        # A factor stands for components that touch every entry of its target.
        covered[place.target][place.index if region.shape == update.tensors[name].shape else ...] = True
    for name, mask in covered.items():
        assert torch.equal(after.tensors[name][~mask], state.tensors[name][~mask])
    for place in update.places.values():
        assert covered[place.target].any()


@rule("rows of a label without clients keep their value")
def test_rows_of_a_label_without_clients_keep_their_value(case):
    state, every = case.state(), tuple(range(case.architecture.classes))
    updates = [case.update(state, tier, client) for client, tier in enumerate(case.tiers)]

    def after(labels: tuple[int, ...] | None) -> GlobalState:
        return case.method.aggregate(state, [replace(update, labels=labels) for update in updates])

    unknown, complete, some = after(None), after(every), after((1, 3))
    named = case.method.label_rows(case.architecture)
    assert named <= state.tensors.keys()
    for name, before in state.tensors.items():
        assert torch.equal(unknown.tensors[name], complete.tensors[name])
        if name not in named:
            assert torch.equal(unknown.tensors[name], some.tensors[name])
            continue
        assert len(before) == len(every)
        torch.testing.assert_close(some.tensors[name][[1, 3]], unknown.tensors[name][[1, 3]])
        assert torch.equal(some.tensors[name][[0, 2]], before[[0, 2]])
        assert not torch.equal(unknown.tensors[name][[0, 2]], before[[0, 2]])
    with pytest.raises(
        AggregationError, match=f"client 0, .*labels: got 1, {len(every)}; expected labels from 0 to {len(every) - 1}"
    ):
        after((1, len(every)))


@rule("a wrong shape raises")
def test_a_wrong_shape_raises_and_names_tensor_and_shapes(case):
    state = case.state()
    for tier in case.tiers:
        update = case.update(state, tier)
        for name, tensor in update.tensors.items():
            for wrong in (tensor[:1], tensor[None], tensor.new_zeros(())):
                if wrong.shape == tensor.shape:
                    continue
                tensors = {**update.tensors, name: wrong}
                expected = rf"{name} has shape .*, expected \({', '.join(map(str, tensor.shape))},?\)"
                with pytest.raises(AggregationError, match=expected):
                    case.method.aggregate(state, [replace(update, tensors=tensors)])


@rule("a missing or extra tensor raises")
def test_a_missing_or_extra_tensor_raises(case):
    state = case.state()
    update = case.update(state, case.tiers[0])
    name = next(iter(update.tensors), None)
    missing = {key: value for key, value in update.tensors.items() if key != name}
    for tensors in (missing, {**update.tensors, "stranger": torch.zeros(1)}):
        if tensors == update.tensors:  # nothing travels, so nothing can be missing
            continue
        with pytest.raises(AggregationError, match=f"missing or not expected: ({name}|stranger)"):
            case.method.aggregate(state, [replace(update, tensors=tensors)])


@rule("payload keys and bytes equal the declaration")
def test_payload_keys_and_bytes_equal_the_declaration(case):
    state = case.state()
    for tier in case.tiers:
        submodel = case.submodel(state, tier, 0)
        down, up = case.method.shapes(case.architecture, tier), case.method.upload_shapes(case.architecture, tier)
        sent = encode(submodel.tensors)
        answer = encode(case.method.upload(case.received(submodel, *images(9, 0))))
        cost = tier_cost(case.method, case.architecture, tier, TRAINING)
        assert len(sent) == payload_bytes(down) == cost.download_bytes
        assert len(answer) == payload_bytes(up) == cost.upload_bytes
        assert decode(sent, down, "test").keys() == down.keys()
        assert decode(answer, up, "test").keys() == up.keys()


@rule("same seed, same bits")
def test_same_seed_same_bits(case):
    first, again, other = case.state(1), case.state(1), case.state(2)
    assert all(torch.equal(first.tensors[n], again.tensors[n]) for n in first.tensors)
    assert any(not torch.equal(first.tensors[n], other.tensors[n]) for n in first.tensors)
    for tier in case.tiers:
        one, two = case.submodel(first, tier).tensors, case.submodel(again, tier).tensors
        assert all(torch.equal(one[n], two[n]) for n in one)


def images(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four kinds of images: one bright quadrant each, in noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=samples)
    x = 0.3 * rng.standard_normal((samples, 1, 8, 8))
    for image, label in zip(x, y, strict=True):
        image[0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 2
    return torch.from_numpy(x).float(), torch.from_numpy(y)


@dataclass
class Home:
    """What one client of the toy problem has: its samples and what it keeps."""

    x: torch.Tensor
    y: torch.Tensor
    kept: dict[str, torch.Tensor] | None = None


def trained(case: Case, state: GlobalState, tier: Tier, client: int, home: Home, round_: int = 0) -> Update:
    submodel = case.method.submodel(state, tier, generator(0, round_, client, "submodel"), client)
    module = submodel.build()
    personal = case.personal(tier) if home.kept is None else home.kept
    case.method.receive(module, submodel.tensors, personal, (home.x, home.y))
    present = torch.zeros(4, dtype=torch.bool)
    present[home.y.unique()] = True
    rng, draws = generator(0, round_, client, "train"), generator(0, round_, client, "draw")
    optimizer = optimizer_of(case.method, module, TRAINING)
    loss = loss_of(case.method, PLAIN)
    result = train(LocalTraining(module, loss, home.x, home.y, present, TRAINING, rng, draws), optimizer)
    assert result.peak_activation_bytes > 0
    home.kept = case.method.keep(module)
    tensors = {name: tensor.detach().clone() for name, tensor in case.method.upload(module).items()}
    return Update(client, tier, tensors, submodel.places, len(home.y))


@rule("a toy problem reaches its optimum")
def test_a_toy_problem_reaches_its_optimum(case):
    from edgefl.client.evaluate import accuracy, with_statistics
    from edgefl.data.sources import Split

    method, state = case.method, case.state()
    homes = [Home(*images(60, client)) for client in range(3)]
    tiers = (case.tiers * 3)[:3]
    for round_ in range(1, 8):
        method, state = method.advance(state, round_)
        current = replace(case, method=method)
        state = method.aggregate(state, [trained(current, state, tier, c, homes[c], round_) for c, tier in enumerate(tiers)])
    x, y = images(200, 99)
    queried = [Split(home.x.numpy(), home.y.numpy()) for home in homes]
    for client, tier in enumerate(tiers):
        home = homes[client]
        module = with_statistics(method.deploy(state, tier, home.kept or None, client), queried, 8)
        module = method.adapt(module, home.x, home.y)
        assert accuracy(module, Split(x.numpy(), y.numpy()), 64) >= 0.99, tier


@rule("one sample and a partial batch of one train")
@pytest.mark.parametrize("samples", [1, 9])
def test_one_sample_and_a_partial_batch_of_one_train(case, samples):
    state = case.state()
    for tier in case.tiers:
        update = trained(case, state, tier, 0, Home(*images(samples, 5)))
        assert all(bool(torch.isfinite(t).all()) for t in update.tensors.values())


@rule("an empty round raises")
def test_an_empty_round_raises(case):
    with pytest.raises(AggregationError, match="no update arrived"):
        case.method.aggregate(case.state(), [])


@rule("a zero weight raises")
def test_a_zero_weight_raises(case):
    state = case.state()
    with pytest.raises(AggregationError, match=r"client 0, tier .*: an update needs a positive number of samples, got 0"):
        case.method.aggregate(state, [case.update(state, case.tiers[0], samples=0)])


@rule("NaN and infinity raise")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nan_and_infinity_raise(case, poison):
    state = case.state()
    update = case.update(state, case.tiers[-1])
    if not update.tensors:
        return
    name = next(iter(update.tensors))
    update.tensors[name].view(-1)[0] = poison
    with pytest.raises(AggregationError, match=f"{name} holds NaN or infinity"):
        case.method.aggregate(state, [update])


@rule("updates are consumed one at a time")
def test_updates_are_consumed_one_at_a_time(case):
    state = case.state()
    alive = 0

    def stream():
        nonlocal alive
        for client in range(4):
            import weakref

            update = case.update(state, case.tiers[-1], client)
            alive += 1
            weakref.finalize(update, count_down)
            yield update
            del update
            assert alive <= 2

    def count_down():
        nonlocal alive
        alive -= 1

    case.method.aggregate(state, stream())


_EXPORTED: dict[tuple[Architecture, str], list[tuple[torch.nn.Module, TierFiles]]] = {}


def exported(case: Case, tier: Tier) -> tuple[torch.nn.Module, TierFiles]:
    """Return the deployed network of a first state and its files. An export takes a second, and several methods deploy one network."""
    module = case.method.deploy(case.state(), tier)
    known = _EXPORTED.setdefault((case.architecture, str(module)), [])
    for other, files in known:
        if same_network(other, module):
            return module, files
    known.append((module, build_tier(module, (1, 8, 8), "net", np.random.default_rng(0))))
    return known[-1]


@rule("ONNX equals torch", of_networks=True)
def test_onnx_equals_torch(case):
    for tier in case.tiers:
        assert exported(case, tier)[1].parity_max_abs_error <= 1e-4


@rule("a training step in onnxruntime is torch's", of_networks=True)
def test_a_training_step_in_onnxruntime_is_torchs(case):
    """Loss and every gradient against torch in float64; of networks but the first, the smallest tier stands for all."""
    tiers = case.tiers if case.architecture is ARCHITECTURES["cnn"] else case.tiers[-1:]
    for tier in tiers:
        for row in parity.measured(case.method, type(case.method).__name__, case.architecture, case.tiers, tier):
            assert row.passes, row


@rule("a deployed network has the size and the MACs of its row of costs", of_networks=True)
def test_a_deployed_network_has_the_size_and_the_macs_of_its_row_of_costs(case):
    for tier in case.tiers:
        module, files = exported(case, tier)
        cost = tier_cost(case.method, case.architecture, tier, TRAINING)
        held = [*module.parameters(), *module.buffers()]
        assert sum(p.numel() for p in module.parameters()) == cost.params_inference
        assert sum(t.numel() * t.element_size() for t in held) == cost.weights_bytes_inference
        counted = count_macs(onnx.load_model_from_string(files.contents["net/forward.onnx"]), 3)
        assert counted.uncounted_ops == ()
        assert counted.total == 3 * cost.macs_inference
