"""FjORD: drawn widths, physically small steps, distillation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.rng import generator

TIERS = (Tier(1.0), Tier(0.5), Tier(0.25))


def started(norm=None, **options):
    method = create("fjord", options, tiers=(1.0, 0.5, 0.25))
    architecture = Architecture("cnn-digits", (1, 8, 8), 4, norm)
    state = method.init(architecture, TIERS, generator(0, "init"))
    module = method.network(architecture, TIERS[0]).train()
    module.load_state_dict(state.tensors)
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(6, 1, 8, 8))).float(), torch.from_numpy(rng.integers(4, size=6))
    return method, architecture, state, module, x, y


def narrow(architecture, state, width):
    network = architecture.build(width).train()
    shapes = network.state_dict()
    network.load_state_dict({n: state.tensors[n][tuple(slice(0, s) for s in t.shape)] for n, t in shapes.items()})
    return network


@pytest.mark.parametrize("norm", ["group", "static", "none"])
@pytest.mark.parametrize(("draw", "width"), [(0.0, 0.25), (0.3, 0.25), (0.4, 0.5), (0.7, 1.0), (0.999999, 1.0), (None, 1.0)])
def test_a_step_trains_the_leading_channels_of_the_drawn_width(draw, width, norm):
    method, architecture, state, module, x, y = started(norm)
    loss = method.local_loss(module, Batch(x, y, None, draw))
    loss.backward()
    alone = narrow(architecture, state, width)
    expected = F.cross_entropy(alone(x), y)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for name, parameter in alone.named_parameters():
        gradient = module.get_parameter(name).grad
        place = tuple(slice(0, size) for size in parameter.shape)
        torch.testing.assert_close(gradient[place], parameter.grad, rtol=1e-4, atol=1e-6)
        outside = gradient.clone()
        outside[place] = 0
        assert not outside.any(), name


def test_a_narrow_step_computes_no_more_than_the_narrow_network():
    method, architecture, state, module, x, y = started()
    counts = []
    for compute in (
        lambda: method.local_loss(module, Batch(x, y, None, 0.1)),
        lambda: narrow(architecture, state, 0.25)(x).sum(),
    ):
        with FlopCounterMode(display=False) as counter:
            compute().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_the_skeleton_of_a_width_is_made_once_and_holds_no_weights(monkeypatch):
    method, _, _, module, x, y = started()
    made = []
    real = Architecture.skeleton
    monkeypatch.setattr(Architecture, "skeleton", lambda self, width=1.0: made.append(width) or real(self, width))
    for draw in (0.1, 0.2, 0.5, 0.1, 0.5, 0.9):
        method.local_loss(module, Batch(x, y, None, draw))
    assert not made
    assert list(module.nested._narrow) == [0.25, 0.5]
    assert all(p.is_meta for skeleton, _ in module.nested._narrow.values() for p in skeleton.parameters())
    assert not any("nested" in name for name in module.state_dict())


def test_widths_up_to_the_own_are_equally_likely():
    method = create("fjord", tiers=(1.0, 0.5, 0.25))
    assert method.step_tiers(Tier(0.5)) == (Tier(0.5), Tier(0.25))
    nested = method.network(Architecture("cnn-digits", (1, 8, 8), 4), Tier(0.5)).nested
    drawn = [nested.drawn(float(d)) for d in np.random.default_rng(0).random(2000)]
    assert sorted(set(drawn)) == [0.25, 0.5]
    assert drawn.count(0.25) / 2000 == pytest.approx(0.5, abs=0.04)
    # A width that is none of the run's tiers counts too: that of a device which is asked about.
    assert method.step_tiers(Tier(0.3)) == (Tier(0.3), Tier(0.25))


def test_distillation_teaches_the_drawn_width_and_trains_the_own():
    method, architecture, state, module, x, y = started(distill=True)
    loss = method.local_loss(module, Batch(x, y, None, 0.1))
    wide, small = narrow(architecture, state, 1.0)(x), narrow(architecture, state, 0.25)(x)
    p, q = torch.softmax(wide.detach(), 1), torch.softmax(small, 1)
    expected = F.cross_entropy(wide, y) + (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(loss, expected)
    assert method.step_tiers(TIERS[0]) == (TIERS[0],)
    own = method.local_loss(module, Batch(x, y, None, 0.9))
    torch.testing.assert_close(own, F.cross_entropy(wide, y))


def test_counted_costs_of_distillation_are_those_of_both_widths():
    training, architecture = Training(1, 32), Architecture("cnn-digits", (1, 8, 8), 4)
    plain = {t: tier_cost(create("fedavg", tiers=(t.ratio,)), architecture, t, training) for t in TIERS}
    both = tier_cost(create("fjord", {"distill": True}), architecture, TIERS[0], training)
    assert both.macs_forward == plain[TIERS[0]].macs_forward + plain[TIERS[1]].macs_forward
    assert not both.uncounted_ops
    alone = tier_cost(create("fjord", {"distill": True}), architecture, TIERS[2], training)
    assert alone.macs_forward == plain[TIERS[2]].macs_forward
