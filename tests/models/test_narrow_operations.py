"""Networks of layers and operations that move or share channels: each narrow one computes what the wide one does with all else silenced."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from narrowing import architecture, first, silenced
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from edgefl.models.input_spec import InputSpec
from edgefl.rng import torch_seeded

STEPS, IMAGE = InputSpec((7, 5)), InputSpec((3, 8, 8))


class Subclass(nn.MultiheadAttention):
    """Attention that keeps its packed weights, as it is more than torch's class."""


class Attending(nn.Module):
    """Attention of 4 heads of 6 channels, with queries of one layer, and keys and values of another."""

    def __init__(self, kind: type[nn.MultiheadAttention], alone: bool = False, **options: object) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(5, 24), nn.Linear(5, int(str(options.get("kdim", 24))))
        self.attention = kind(24, 4, **options)
        self.fc, self.alone = nn.Linear(24, 3), alone

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries(x)
        keys = queries if self.alone else self.keys(x)
        later = torch.ones(7, 7, dtype=torch.bool, device=x.device).triu(1)
        return self.fc(self.attention(queries, keys, keys, attn_mask=later)[0].mean(1))


ATTENTION = {
    "of itself": {"alone": True},
    "of others": {},
    "without bias": {"bias": False},
    "other sizes": {"kdim": 16, "vdim": 16},
    "a learned key": {"add_bias_kv": True},
    "a key of zeros": {"add_zero_attn": True},
}


@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize("width", [0.3, 0.5])
@pytest.mark.parametrize("kind", [nn.MultiheadAttention, Subclass])
def test_torchs_attention_is_cut_head_by_head(case: str, width: float, kind: type[nn.MultiheadAttention]) -> None:
    source = architecture(lambda: Attending(kind, **ATTENTION[case], batch_first=True), {"": STEPS})
    with torch_seeded(np.random.default_rng(7)):
        wide, x = source.build().eval(), torch.randn(2, 7, 5)
        for parameter in wide.parameters():  # torch's biases are 0
            nn.init.normal_(parameter, 0.0, 0.4)
    narrow = source.channels.narrow(copy.deepcopy(wide), width)
    head = math.ceil(6 * width)
    assert (narrow.attention.num_heads, narrow.attention.head_dim) == (4, head)
    assert narrow.queries.out_features == 4 * head
    quiet = silenced(wide, source, width)
    with torch.no_grad():  # queries are divided by the root of a head's channels, of which the narrow network has fewer
        for name, parameter in quiet.attention.named_parameters():
            if name.startswith("q_proj"):
                parameter *= (6 / head) ** 0.5
            elif name.startswith("in_proj"):  # the queries' part of it, or only of its bias
                parameter[:24] *= (6 / head) ** 0.5
    assert torch.allclose(first(narrow, x), first(quiet, x), atol=1e-5)


def test_torchs_transformers_are_cut_as_a_whole() -> None:
    def network() -> nn.Module:
        inner = nn.Transformer(24, 4, 1, 1, 48, batch_first=True)
        return nn.Sequential(nn.Linear(5, 24), Twice(inner), nn.Flatten(), nn.Linear(7 * 24, 3))

    narrow = architecture(network, {"": STEPS}).build(0.5)
    inner = narrow[1].network
    assert (inner.d_model, inner.nhead, inner.encoder.layers[0].linear1.out_features) == (12, 4, 24)
    assert {p.shape[0] for name, p in inner.named_parameters() if "q_proj" in name} == {12}
    assert narrow(torch.zeros(2, 7, 5)).shape == (2, 3)


class Twice(nn.Module):
    """A network of two inputs, which are the same here."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x, x)


class Applied(nn.Module):
    """Layers with a function between them."""

    def __init__(self, before: nn.Module, function: Callable[[Tensor], Tensor], after: nn.Module, outputs: int) -> None:
        super().__init__()
        self.before, self.function, self.after, self.fc = before, function, after, nn.Linear(outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.after(self.function(self.before(x))).mean((2, 3)))


def conv(inputs: int, outputs: int, groups: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups)


# Network, and the outputs and inputs of its layers before and after the operation at half its width.
OPERATIONS = {
    "gate": (lambda: Applied(conv(3, 32), lambda x: F.glu(x, 1), conv(16, 16, groups=16), 16), 16, 8),
    "to pixels": (lambda: Applied(conv(3, 64), lambda x: F.pixel_shuffle(x, 2), conv(16, 8), 8), 32, 8),
    "from pixels": (lambda: Applied(conv(3, 16), lambda x: F.pixel_unshuffle(x, 2), conv(64, 8), 8), 8, 32),
    "shuffle": (lambda: Applied(conv(3, 16), nn.ChannelShuffle(2), conv(16, 16, groups=2), 16), 8, 8),
    "log of sigmoid": (lambda: Applied(conv(3, 16), F.logsigmoid, conv(16, 8), 8), 8, 8),
    "every second row": (lambda: Applied(conv(3, 16), lambda x: x[:, :, torch.tensor([0, 2, 4, 6])], conv(16, 8), 8), 8, 8),
    "chosen columns": (lambda: Applied(conv(3, 16), lambda x: x.index_select(3, torch.tensor([1, 5])), conv(16, 8), 8), 8, 8),
    "weights with a length": (lambda: Applied(weight_norm(conv(3, 16)), F.relu, weight_norm(conv(16, 8)), 8), 8, 8),
    "one length": (lambda: Applied(conv(3, 16), F.relu, weight_norm(conv(16, 8), dim=None), 8), 8, 8),
    "transposed": (
        lambda: Applied(conv(3, 16), F.relu, weight_norm(nn.ConvTranspose2d(16, 8, 2, 2), dim=1), 8), 8, 8
    ),
    "largest singular value 1": (lambda: Applied(conv(3, 16), F.relu, spectral_norm(conv(16, 8)), 8), 8, 8),
}  # fmt: skip


@pytest.mark.parametrize("case", OPERATIONS)
def test_channels_are_followed_through_an_operation(case: str) -> None:
    factory, outputs, inputs = OPERATIONS[case]
    source = architecture(factory, {"": IMAGE})
    with torch_seeded(np.random.default_rng(8)):
        wide, x = source.build().eval(), torch.randn(2, 3, 8, 8)
    narrow = source.channels.narrow(copy.deepcopy(wide), 0.5)
    assert (narrow.before.weight.shape[0], narrow.after.in_channels) == (outputs, inputs)
    assert torch.allclose(first(narrow, x), first(silenced(wide, source, 0.5), x), atol=1e-5)


class Scan(nn.Module):
    """A selective scan as in Mamba: the sizes of a split are noted, the state's channels are those of a table."""

    def __init__(self, channels: int = 16, states: int = 4) -> None:
        super().__init__()
        self.states, self.inside, self.steps = states, nn.Linear(5, channels), nn.Linear(channels, 2 * states + 1)
        self.decay, self.fc = nn.Parameter(torch.ones(channels, states)), nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        u = self.inside(x)
        enter, leave, step = self.steps(u).split([self.states, self.states, 1], -1)
        step = F.softplus(step)
        state = torch.zeros(u.shape[0], u.shape[2], enter.shape[2], device=x.device)
        left = []
        for t in range(u.shape[1]):
            kept = torch.exp(-step[:, t, :, None] * self.decay)
            state = kept * state + step[:, t, :, None] * enter[:, t, None, :] * u[:, t, :, None]
            left.append((state * leave[:, t, None, :]).sum(-1))
        return self.fc(torch.stack(left, 1).mean(1))


def test_sizes_of_a_split_are_changed_where_the_module_notes_them() -> None:
    source = architecture(Scan, {"": STEPS})
    with torch_seeded(np.random.default_rng(9)):
        wide, x = source.build(), torch.randn(2, 7, 5)
    narrow = source.channels.narrow(copy.deepcopy(wide), 0.5)
    assert (narrow.states, narrow.inside.out_features, tuple(narrow.decay.shape)) == (2, 8, (8, 2))
    assert torch.allclose(first(narrow, x), first(silenced(wide, source, 0.5), x), atol=1e-5)


class Stepped(nn.Module):
    """A recurrent cell that begins with its own zeros."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(x[:, 0])
        return self.cell(x[:, 1], state)


NOTING = {
    "RMSNorm": lambda: nn.RMSNorm(16),
    "RMSNorm without weights": lambda: nn.RMSNorm(16, elementwise_affine=False),
    "LayerNorm without weights": lambda: nn.LayerNorm(16, elementwise_affine=False),
    "InstanceNorm": lambda: Turned(nn.InstanceNorm1d(16, affine=True)),
    "InstanceNorm without weights": lambda: Turned(nn.InstanceNorm1d(16)),
    "InstanceNorm with statistics only": lambda: Turned(nn.InstanceNorm1d(16, track_running_stats=True)),
    "InstanceNorm of images": lambda: nn.Sequential(nn.Unflatten(2, (16, 1)), Turned(nn.InstanceNorm2d(16)), nn.Flatten(2)),
    "GRUCell": lambda: Stepped(nn.GRUCell(16, 16)),
    "Unflatten": lambda: nn.Sequential(nn.Unflatten(2, (16, 1)), nn.Flatten(2)),
}


class Turned(nn.Module):
    """A layer whose channels come before the steps."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("case", NOTING)
@pytest.mark.filterwarnings("error")
def test_layers_of_torch_that_note_sizes_are_cut_with_their_input(case: str) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 16), NOTING[case](), nn.Linear(16, 3))

    narrow = architecture(network, {"": STEPS}).build(0.5)
    assert (narrow[0].out_features, narrow[2].in_features) == (8, 8)
    assert torch.isfinite(narrow(torch.ones(2, 7, 5))).all()


def test_norms_without_weights_may_work_with_different_channels() -> None:
    def norm() -> nn.Module:
        return nn.LayerNorm(8, elementwise_affine=False)

    narrow = architecture(lambda: nn.Sequential(nn.Linear(5, 8), norm(), nn.Linear(8, 8), norm()), {"": STEPS}).build(0.5)
    assert [tuple(layer.normalized_shape) for layer in narrow if isinstance(layer, nn.LayerNorm)] == [(4,), (8,)]
