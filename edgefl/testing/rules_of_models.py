"""Rules of models: widths nest, costs are counted, samples do not depend on each other, and every parameter trains."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.registry import models

WIDTHS = 1.0, 0.5, 0.25
CLASSES = 5


@functools.cache
def architecture_of(model: str) -> Architecture:
    """Return the network for its usual input."""
    shape = models.facts(model).get("usual_input")
    assert shape, f'model {model} declares no usual_input, such as @model("{model}", usual_input=(3, 32, 32))'
    return Architecture(model, tuple(shape), CLASSES)


def smallest(model: str) -> nn.Module:
    """Return the network at the smallest of the widths, which computes fast."""
    return architecture_of(model).build(WIDTHS[-1])


def samples(model: str, count: int) -> Tensor:
    """Return random samples."""
    architecture, rng = architecture_of(model), np.random.default_rng(0)
    shape = (count, *architecture.input_shape)
    if architecture.vocabulary:
        return torch.from_numpy(rng.integers(architecture.vocabulary, size=shape))
    return torch.from_numpy(rng.standard_normal(shape)).float()


def test_narrow_networks_lie_inside_the_wide_one(model: str) -> None:
    """Every width has the same tensors by name, and none is larger than at a larger width."""
    wide, *others = ({n: t.shape for n, t in architecture_of(model).skeleton(width).state_dict().items()} for width in WIDTHS)
    for width, shapes in zip(WIDTHS[1:], others, strict=True):
        assert shapes.keys() == wide.keys(), f"at width {width} the tensors have other names"
        for name, shape in shapes.items():
            fits = len(shape) == len(wide[name]) and all(a <= b for a, b in zip(shape, wide[name], strict=True))
            assert fits, f"{name} is {tuple(shape)} at width {width}, which does not lie inside of {tuple(wide[name])}"
        wide = shapes


def test_costs_are_fully_counted_and_grow_with_the_width(model: str) -> None:
    """All operations are counted, and a narrower network has fewer parameters and MACs."""
    architecture, training = architecture_of(model), Training(1, 2, 0.05, 0.9, 0.0)
    wide, narrow = (tier_cost(create("fedavg"), architecture, Tier(width), training) for width in (WIDTHS[0], WIDTHS[-1]))
    for cost, width in ((wide, WIDTHS[0]), (narrow, WIDTHS[-1])):
        assert not cost.uncounted_ops, f"edgefl cannot count {', '.join(cost.uncounted_ops)}"
        assert cost.params == sum(p.numel() for p in architecture.skeleton(width).parameters())
    assert wide.params > narrow.params, "a narrower network has as many parameters"
    assert wide.macs_forward > narrow.macs_forward > 0, "a narrower network has as many MACs"


def test_outputs_are_one_finite_number_per_class(model: str) -> None:
    """The output of n samples is (n, classes), float32 and finite, also of one sample in training."""
    network = smallest(model)
    for count in (3, 1):
        outputs = network.train()(samples(model, count))
        assert outputs.shape == (count, CLASSES), f"{count} samples give {tuple(outputs.shape)}, expected {(count, CLASSES)}"
        assert outputs.dtype == torch.float32
        assert bool(torch.isfinite(outputs).all()), "an output is NaN or infinite"


def test_every_parameter_gets_a_gradient(model: str) -> None:
    """Every parameter takes part in the output."""
    network = smallest(model)
    nn.functional.cross_entropy(network(samples(model, 3)), torch.arange(3)).backward()
    idle = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert not idle, f"no gradient reaches {', '.join(idle)}"


def test_evaluated_samples_do_not_depend_on_each_other(model: str) -> None:
    """In evaluation the output of a sample is the same alone and among others, and the same every time."""
    network, x = smallest(model).eval(), samples(model, 3)
    with torch.no_grad():
        together = network(x)
        assert torch.equal(network(x), together), "two evaluations differ: dropout or noise in evaluation"
        torch.testing.assert_close(network(x[:1]), together[:1], rtol=1e-4, atol=1e-5)
