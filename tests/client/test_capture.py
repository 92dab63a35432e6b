"""Captured steps are the steps, to the last bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from edgefl.client.fast.capture import CaptureError, Inputs, capture, gradient_of, recorded
from edgefl.client.fast.gradients import MANY, Captures, written
from edgefl.client.loss import loss_of
from edgefl.client.objective import objective_named
from edgefl.client.objectives import PLAIN
from edgefl.client.parts import first_personal, shared_parameters
from edgefl.methods.capabilities import draws
from edgefl.methods.create import create
from edgefl.methods.personal import trained_network
from edgefl.models.base import Architecture, named_tensors
from edgefl.records import Batch, Tier
from edgefl.registry import methods
from edgefl.rng import generator


def batch_of(count, seed, shape=(1, 8, 8), draw=0.4):
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=drawn)
    return Batch(x, torch.randint(0, 10, (count,), generator=drawn), torch.arange(10) < 7, draw)


def gradients(module):
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def same(first, second):
    return all(a is b is None or torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("norm", "objective"), [("group", PLAIN), ("static", objective_named("prox", 0.3))], ids=["plain", "prox"]
)
@pytest.mark.parametrize("name", sorted(methods.names()))
def test_every_method_s_captured_step_has_the_bits_of_autograd(name, norm, objective):
    method = create(name)
    architecture = Architecture("cnn-digits", (1, 8, 8), 10, norm)
    tier = Tier(method.default_tiers[-1])
    state = method.init(architecture, tuple(map(Tier, method.default_tiers)), generator(3, "init"))
    personal = first_personal(method, architecture, tier, 3)
    module = trained_network(method, state, tier, personal).train()
    shared = shared_parameters(method, module)
    objective.attach(module, shared, {}, {})
    loss = loss_of(method, objective)
    captures = Captures()
    choices = len(draws(method, tier))
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    gradient = captures.gradient("kind", module, loss, trained, choices)
    for number in range(MANY + 3):
        batch = batch_of(6, number)
        module.zero_grad()
        expected = written(module, loss)(batch, 1.0), gradients(module)
        module.zero_grad()
        found = gradient(batch, 1.0)
        assert torch.equal(found, expected[0])
        assert same(gradients(module), expected[1])
        assert all(p.grad is None or p.grad.is_contiguous() == p.is_contiguous() for p in module.parameters())
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(0.97)
    # Methods whose loss cannot be recorded take their steps as they are written; none does so silently.
    assert list(captures._steps.values()) == [MANY + 3]
    assert len(captures._captured) == 1


def test_a_capture_reads_what_it_is_given_and_nothing_else():
    module, other = nn.Linear(3, 2), torch.ones(2)
    inputs = Inputs(named_tensors(module), Batch(torch.ones(1, 3), torch.zeros(1, dtype=torch.int64)))
    take = gradient_of(module, lambda m, b: (F.linear(b.x, m.weight, m.bias) * other).sum(), ["weight", "bias"])
    with pytest.raises(CaptureError, match="besides its inputs"):
        capture(take, inputs)


def test_checkpointing_runs_layers_again_with_the_tensors_of_the_step():
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    others = {name: torch.linspace(-1, 1, t.numel()).view_as(t) for name, t in named_tensors(network).items()}
    inputs = Inputs(others, Batch(torch.arange(6.0).view(2, 3) - 2, torch.tensor([0, 1])))
    plain, again = (
        gradient_of(network, lambda m, b, f=forward: F.cross_entropy(f(m, b.x), b.y), list(others))(inputs)
        for forward in (lambda m, x: m(x), lambda m, x: checkpoint(m, x, use_reentrant=False))
    )
    assert all(map(torch.equal, plain, again))


def test_a_step_that_depends_on_a_value_is_not_captured():
    module = nn.Linear(3, 2)
    inputs = Inputs(named_tensors(module), Batch(torch.ones(1, 3), torch.zeros(1, dtype=torch.int64)))

    def loss(m, b):
        total = m(b.x).sum()
        return total if total.item() > 0 else -total

    with pytest.raises(CaptureError, match="value of a tensor"):
        capture(gradient_of(module, loss, ["weight", "bias"]), inputs)


def test_a_random_step_draws_anew_in_every_replay_and_leaves_the_generator_alone():
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)).train()
    batch = Batch(torch.ones(4, 8), torch.zeros(4, dtype=torch.int64))
    loss = lambda m, b: F.cross_entropy(m(b.x), b.y)  # noqa: E731
    trained = [name for name, _ in module.named_parameters()]
    take, inputs = gradient_of(module, loss, trained), Inputs(named_tensors(module), batch)
    before = torch.random.get_rng_state()
    captured = capture(take, inputs)
    assert torch.equal(before, torch.random.get_rng_state())
    for _ in range(3):
        state = torch.random.get_rng_state()
        expected = take(inputs)
        after = torch.random.get_rng_state()
        torch.random.set_rng_state(state)
        assert same(captured(inputs), expected)
        assert torch.equal(after, torch.random.get_rng_state())
    assert not torch.equal(captured(inputs)[0], captured(inputs)[0])


def test_running_statistics_move_as_they_do_in_a_step():
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).train()
    other = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).train()
    other.load_state_dict(module.state_dict())
    loss = lambda m, b: F.cross_entropy(m(b.x), b.y)  # noqa: E731
    gradient = Captures().gradient("kind", module, loss, dict(module.named_parameters()))
    for number in range(MANY + 3):
        batch = batch_of(5, number)
        batch = Batch(batch.x, batch.y % 2)
        assert torch.equal(gradient(batch, 1.0), written(other, loss)(batch, 1.0))
        module.zero_grad()
        other.zero_grad()
    assert all(map(torch.equal, module.buffers(), other.buffers()))


def test_numbers_that_are_none_stay_so():
    """Where training diverges a replay must not hide it."""
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)).train()
    loss = lambda m, b: F.cross_entropy(m(b.x), b.y)  # noqa: E731
    gradient = Captures().gradient("kind", module, loss, dict(module.named_parameters()))
    for number in range(MANY + 1):
        gradient(batch_of(5, number), 1.0)
        module.zero_grad()
    bad = batch_of(5, 99)
    bad.x[0, 0, 2, 3] = float("nan")
    found, grads = gradient(bad, 1.0), gradients(module)
    module.zero_grad()
    expected = written(module, loss)(bad, 1.0)
    assert found.isnan()
    assert expected.isnan()
    assert all(torch.equal(a.isnan(), b.isnan()) for a, b in zip(grads, gradients(module), strict=True))


def test_the_gradient_of_a_relu_is_laid_out_as_its_output():
    weight, x = torch.randn(4, 3, 3, 3), torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    linear = torch.randn(2, 4 * 6 * 6)

    def step():
        kept = weight.detach().requires_grad_()
        loss = F.linear(F.conv2d(x, kept).relu().flatten(1), linear).sum()
        return [loss.detach(), *torch.autograd.grad(loss, [kept])]

    run = recorded(step, [weight, x, linear])
    assert same(run(weight, x, linear), step())
    operations = [node.target for node in run.__self__.graph.nodes if node.op == "call_function"]
    masked = operations.index(torch.ops.aten.threshold_backward.grad_input)
    assert operations[masked - 1] is torch.ops.aten.clone.default
