"""Networks that look into the layers that methods replace: at weights, noted sizes, or by the fused kernels of torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.planning.network import architecture_of
from edgefl.planning.profile import profile
from edgefl.records import Tier

CLASSES = 5


class Reading(nn.Module):
    """Uses the weight of a layer itself, and the sizes that layers note."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.linear(self.a(x).relu(), self.b.weight, self.b.bias) / self.a.in_features)


@pytest.mark.parametrize("method", ["fedhm", "lowrank", "fedpara", "prism", "flanc", "factorized-fl"])
def test_networks_that_read_the_weight_of_a_replaced_layer_are_refused_by_its_name(method):
    with pytest.raises(ConfigError, match="^model Reading reads the weight of b itself, and .* replaces the layer; ") as error:
        profile(Reading, (24,), CLASSES, method=method, tiers=(0.25,))
    if method in ("fedhm", "lowrank", "fedpara"):
        assert "dense by --method-option factorize=!b, or choose a method that cuts width" in str(error.value)
        profile(Reading, (24,), CLASSES, method=method, method_options={"factorize": "!b"}, tiers=(0.25,))


def test_another_input_than_the_network_takes_is_still_what_is_wrong():
    with pytest.raises(ConfigError, match="^model Reading does not take input 25: "):
        profile(Reading, (25,), CLASSES, method="fedhm", tiers=(0.25,))


class Encoder(nn.Module):
    """Torch's encoder, whose fused kernels read weights in evaluation, with or without padding."""

    def __init__(self, padded: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 4, 48, 0.0, batch_first=True)
        self.padded, self.encoder, self.fc = padded, nn.TransformerEncoder(layer, 1), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.arange(6, device=x.device).expand(len(x), 6) >= 4 if self.padded else None
        return self.fc(self.encoder(x, src_key_padding_mask=padding)[:, :4].mean(1))


@pytest.mark.parametrize("method", ["fedhm", "prism", "orthdrop", "lowrank", "fedpara", "factorized-fl"])
@pytest.mark.parametrize("padded", [False, True])
def test_factorized_transformer_blocks_evaluate_what_they_train(method, padded):
    architecture = architecture_of(lambda: Encoder(padded), (6, 24), CLASSES)
    network, x = create(method).network(architecture, Tier(0.25)), torch.randn(2, 6, 24)
    with torch.no_grad():
        torch.testing.assert_close(network.eval()(x), network.train()(x))
