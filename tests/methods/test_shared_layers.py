"""Every method with a tied head and with a layer under two names: each tensor is sent once, or the network is refused with a reason."""

import numpy as np
import pytest
import torch

from edgefl.client.parts import first_personal
from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import download_shapes, trained_network
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.records import Batch, Tier, Update
from edgefl.registry import methods
from edgefl.rng import generator
from tests.shared_networks import Again, Once, TiedHead, samples

REFUSED = {
    ("depthfl", TiedHead): "DepthFL cannot cut TiedHead",
    ("last-blocks", TiedHead): "Last blocks cannot freeze a part of TiedHead",
    ("fedper", TiedHead): r"head.weight is also embedding.weight, so that it cannot be personal where that is averaged",
    **{(name, build): f"^{name} finds no layer" for name in ("fedpara", "pfedpara") for build in (TiedHead, Again)},
    ("flanc", TiedHead): "FLANC finds no layer",
    ("flanc", Again): "FLANC finds no layer",
}


def architecture(build):
    shape = InputSpec((5,), torch.int64, 10) if build is TiedHead else InputSpec((8,), torch.float32)
    return CustomArchitecture.of(build, {"": shape}, 10 if build is TiedHead else 4)


def started(name, build):
    method, own = create(name), architecture(build)
    tiers = tuple(map(Tier, method.default_tiers))
    method.check(own, tiers, 4)
    return method, own, tiers, method.init(own, tiers, generator(3, "init"))


@pytest.mark.parametrize("build", [TiedHead, Again], ids=lambda build: build.__name__)
@pytest.mark.parametrize("name", sorted(methods.names()))
def test_every_method_sends_a_tensor_once_or_refuses(name, build):
    if (name, build) in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name, build]):
            started(name, build)
        return
    method, own, tiers, state = started(name, build)
    second = {"head.weight"} if build is TiedHead else {"again.weight", "again.bias"}
    for tier in tiers:
        personal = first_personal(method, own, tier, 3)
        module = trained_network(method, state, tier, personal, 0).train()
        sub = method.submodel(state, tier, np.random.default_rng(0), 0)
        assert not any(sent.endswith(tuple(second)) for sent in sub.tensors)
        x, y = samples(build(), 6)
        method.local_loss(module, Batch(x, y, torch.ones(own.classes, dtype=torch.bool), 0.4)).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
        update = Update(0, tier, dict(method.upload(module)), sub.places, 6)
        assert set(update.tensors) == set(upload_shapes(method, own, tier))
        deployed = method.deploy(method.aggregate(state, [update]), tier, personal, 0)
        parts = [part for part in deployed.modules() if isinstance(part, build)]
        for part in parts:
            if build is Again and name != "depthfl":  # whose networks end before the layer
                assert part.again is part.body
            if build is TiedHead:
                assert part.head.weight is part.embedding.weight


@pytest.mark.parametrize("name", ["fedavg", "heterofl", "per-fedavg"])
def test_a_second_name_changes_nothing(name):
    found = []
    for build in (Again, Once):
        method, own, tiers, state = started(name, build)
        module = trained_network(method, state, tiers[-1], {}, 0).train()
        x, y = samples(module, 6)
        loss = method.local_loss(module, Batch(x, y, torch.ones(4, dtype=torch.bool), None))
        loss.backward()
        found.append(
            (float(loss.detach()), {n: p.grad for n, p in module.named_parameters()}, download_shapes(method, own, tiers[-1]))
        )
    (first, gradients, shapes), (second, others, once) = found
    assert (first, shapes) == (second, once)
    assert all(torch.equal(gradient, others[key]) for key, gradient in gradients.items())
