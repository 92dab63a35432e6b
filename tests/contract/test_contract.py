"""The contract that every method passes, one test per rule, over every method and tier.

A method lists the rules that cannot hold for it in ``contract_exceptions``; such a rule must then really fail (strict xfail), so the list
cannot outlive its reasons.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from edgefl.errors import AggregationError
from edgefl.local.train import Training, optimizer_of, train
from edgefl.methods.base import GlobalState, Method, create
from edgefl.models.base import Architecture
from edgefl.onnxio.bundle import build_tier
from edgefl.prepare import tier_cost
from edgefl.records import Submodel, Tier, Update
from edgefl.registry import methods
from edgefl.rng import generator
from edgefl.wire import decode, encode, payload_bytes

ARCHITECTURES = {
    "cnn": Architecture("cnn-digits", (1, 8, 8), 4),
    "mlp": Architecture("mlp", (1, 8, 8), 4),
    "static": Architecture("cnn-digits", (1, 8, 8), 4, "static"),
}
TRAINING = Training(epochs=1, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-4)


@dataclass(frozen=True)
class Case:
    method: Method
    architecture: Architecture
    tiers: tuple[Tier, ...]

    def state(self, seed: int = 0) -> GlobalState:
        return self.method.init(self.architecture, self.tiers, generator(seed, "init"))

    def submodel(self, state: GlobalState, tier: Tier) -> Submodel:
        return self.method.submodel(state, tier, generator(0, "submodel"))

    def update(self, state: GlobalState, tier: Tier, client: int = 0, noise: float = 0.1, samples: int = 10) -> Update:
        submodel = self.submodel(state, tier)
        rng = np.random.default_rng(client + 1)
        tensors = {
            name: tensor + noise * torch.from_numpy(rng.standard_normal(tuple(tensor.shape))).float()
            for name, tensor in submodel.tensors.items()
        }
        return Update(client, tier, tensors, submodel.places, samples)


def cases() -> list[object]:
    params = []
    for name in methods.names():
        method = create(name)
        for kind, architecture in ARCHITECTURES.items():
            tiers = tuple(Tier(ratio) for ratio in method.default_tiers)
            params.append(pytest.param(Case(method, architecture, tiers), id=f"{name}-{kind}"))
    return params


def excused(rule: str) -> list[object]:
    """Return every case, with those whose method cannot keep ``rule`` expected to fail."""
    marked = []
    for param in cases():
        reason = param.values[0].method.contract_exceptions.get(rule)
        marks = [pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True)] if reason else []
        marked.append(pytest.param(*param.values, id=param.id, marks=marks))
    return marked


RULES = {"unchanged clients leave the state unchanged"}
every_case = pytest.mark.parametrize("case", cases())


@every_case
def test_exceptions_name_rules_that_exist(case):
    assert set(case.method.contract_exceptions) <= RULES
    assert all(len(reason) > 30 for reason in case.method.contract_exceptions.values())


@every_case
def test_submodel_leaves_the_state_untouched(case):
    state = case.state()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    for tier in case.tiers:
        for tensor in case.submodel(state, tier).tensors.values():
            tensor.add_(1.0)
    assert all(torch.equal(before[name], state.tensors[name]) for name in before)


@every_case
def test_every_tier_fits_its_declared_size_exactly(case):
    state = case.state()
    for tier in case.tiers:
        submodel = case.submodel(state, tier)
        declared = case.method.shapes(case.architecture, tier)
        assert {name: tuple(t.shape) for name, t in submodel.tensors.items()} == declared
        assert submodel.places.keys() == submodel.tensors.keys()
        module = submodel.build()
        module.load_state_dict(submodel.tensors)
        params = sum(p.numel() for p in module.parameters())
        assert params == tier_cost(case.method, case.architecture, tier, TRAINING).params
        # Physically small: nothing of the full size is kept behind a smaller view.
        assert sum(t.untyped_storage().nbytes() for t in submodel.tensors.values()) == 4 * params


@every_case
def test_cost_grows_with_the_tier(case):
    costs = [tier_cost(case.method, case.architecture, tier, TRAINING) for tier in case.tiers]
    names = ["params", "macs_forward", "parameter_bytes", "download_bytes"]
    if case.architecture.model != "mlp":
        # Where the first layer itself is factorized, its second factor needs an input gradient that the dense layer does without.
        names += ["macs_backward", "macs_train_step"]
    for larger, smaller in itertools.pairwise(costs):
        for name in names:
            assert getattr(larger, name) > getattr(smaller, name), name
    assert all(not cost.uncounted_ops for cost in costs)


@every_case
def test_the_full_tier_computes_what_the_global_model_computes(case):
    state = case.state()
    x = torch.from_numpy(np.random.default_rng(3).standard_normal((5, 1, 8, 8))).float()
    with torch.no_grad():
        full = case.method.deploy(state, case.tiers[0])(x)
        assert torch.equal(full, case.method.deploy(state, case.method.global_tier(state))(x))
    dense = case.architecture.build().eval()
    dense.load_state_dict(state.tensors)
    with torch.no_grad():
        assert torch.allclose(full, dense(x), atol=1e-6)


@pytest.mark.parametrize("case", excused("unchanged clients leave the state unchanged"))
def test_unchanged_clients_leave_the_state_unchanged(case):
    state = case.state()
    updates = [case.update(state, tier, client, noise=0.0) for client, tier in enumerate(case.tiers)]
    after = case.method.aggregate(state, updates)
    for name, tensor in state.tensors.items():
        torch.testing.assert_close(after.tensors[name], tensor, rtol=1e-6, atol=1e-7)


@every_case
def test_the_order_of_updates_does_not_matter(case):
    state = case.state()
    tiers = (case.tiers * 3)[:5]
    updates = [case.update(state, tier, client, samples=3 + 7 * client) for client, tier in enumerate(tiers)]
    one, other = case.method.aggregate(state, updates), case.method.aggregate(state, reversed(updates))
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(other.tensors[name], tensor, rtol=1e-6, atol=1e-7)


@every_case
def test_one_full_tier_client_alone_wins_outright(case):
    state = case.state()
    update = case.update(state, case.tiers[0])
    after = case.method.aggregate(state, [update])
    assert any(not torch.equal(after.tensors[name], state.tensors[name]) for name in state.tensors)
    for name, tensor in update.tensors.items():
        torch.testing.assert_close(after.tensors[name], tensor, rtol=1e-6, atol=1e-7)


@every_case
def test_entries_that_nobody_covered_keep_their_value(case):
    state = case.state()
    smallest = case.tiers[-1]
    update = case.update(state, smallest)
    after = case.method.aggregate(state, [update])
    covered = {name: torch.zeros(t.shape, dtype=torch.bool) for name, t in state.tensors.items()}
    for name, place in update.places.items():
        region = covered[place.target][place.index]
        # A factor stands for components that touch every entry of its target.
        covered[place.target][place.index if region.shape == update.tensors[name].shape else ...] = True
    for name, mask in covered.items():
        assert torch.equal(after.tensors[name][~mask], state.tensors[name][~mask])
        assert mask.any()


@every_case
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


@every_case
def test_a_missing_or_extra_tensor_raises(case):
    state = case.state()
    update = case.update(state, case.tiers[0])
    name = next(iter(update.tensors))
    missing = {key: value for key, value in update.tensors.items() if key != name}
    for tensors in (missing, {**update.tensors, "stranger": torch.zeros(1)}):
        with pytest.raises(AggregationError, match=f"missing or not expected: ({name}|stranger)"):
            case.method.aggregate(state, [replace(update, tensors=tensors)])


@every_case
def test_payload_keys_and_bytes_equal_the_declaration(case):
    state = case.state()
    for tier in case.tiers:
        shapes = case.method.shapes(case.architecture, tier)
        payload = encode(case.submodel(state, tier).tensors)
        cost = tier_cost(case.method, case.architecture, tier, TRAINING)
        assert len(payload) == payload_bytes(shapes) == cost.download_bytes == cost.upload_bytes
        assert decode(payload, shapes, "test").keys() == shapes.keys()


@every_case
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


def trained(case: Case, state: GlobalState, tier: Tier, client: int, x: torch.Tensor, y: torch.Tensor, round_: int = 0) -> Update:
    submodel = case.submodel(state, tier)
    module = submodel.build()
    module.load_state_dict(submodel.tensors)
    present = torch.zeros(4, dtype=torch.bool)
    present[y.unique()] = True
    rng = generator(0, round_, client, "train")
    optimizer = optimizer_of(case.method, module, TRAINING)
    result = train(module, lambda m, b: case.method.local_loss(m, b, submodel.tensors), optimizer, x, y, present, TRAINING, rng)
    assert result.peak_activation_bytes > 0
    return Update(client, tier, {k: v.detach() for k, v in module.state_dict().items()}, submodel.places, len(y))


@every_case
def test_a_toy_problem_reaches_its_optimum(case):
    from edgefl.data.sources import Split
    from edgefl.server.evaluate import accuracy, with_statistics

    state = case.state()
    shards = [images(60, client) for client in range(3)]
    for round_ in range(6):
        tiers = (case.tiers * 3)[:3]
        state = case.method.aggregate(state, [trained(case, state, tier, c, *shards[c], round_) for c, tier in enumerate(tiers)])
    x, y = images(200, 99)
    queried = [Split(x.numpy(), y.numpy()) for x, y in shards]
    for tier in case.tiers:
        module = with_statistics(case.method.deploy(state, tier), queried, 8)
        assert accuracy(module, Split(x.numpy(), y.numpy()), 64) >= 0.99, tier


@every_case
@pytest.mark.parametrize("samples", [1, 9])
def test_one_sample_and_a_partial_batch_of_one_train(case, samples):
    state = case.state()
    for tier in case.tiers:
        update = trained(case, state, tier, 0, *images(samples, 5))
        assert all(bool(torch.isfinite(t).all()) for t in update.tensors.values())


@every_case
def test_an_empty_round_raises(case):
    with pytest.raises(AggregationError, match="no update arrived"):
        case.method.aggregate(case.state(), [])


@every_case
def test_a_zero_weight_raises(case):
    state = case.state()
    with pytest.raises(AggregationError, match=r"client 0, tier .*: an update needs a positive number of samples, got 0"):
        case.method.aggregate(state, [case.update(state, case.tiers[0], samples=0)])


@every_case
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nan_and_infinity_raise(case, poison):
    state = case.state()
    update = case.update(state, case.tiers[-1])
    name = next(iter(update.tensors))
    update.tensors[name].view(-1)[0] = poison
    with pytest.raises(AggregationError, match=f"{name} holds NaN or infinity"):
        case.method.aggregate(state, [update])


@every_case
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


@every_case
def test_onnx_equals_torch(case):
    state = case.state()
    for tier in case.tiers:
        files = build_tier(case.method.deploy(state, tier), (1, 8, 8), tier.label, np.random.default_rng(0))
        assert files.parity_max_abs_error <= 1e-4
