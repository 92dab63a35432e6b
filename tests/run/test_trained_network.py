"""A run's networks as torch modules, and their weights in files."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import edgefl
from edgefl.errors import InputError

SMALL = {"rounds": 2, "clients": 4, "local_epochs": 1, "data_share": 0.3, "conditions": "ideal"}


class Normed(nn.Module):
    """A network with counters, a table of indices and a hook of its own, that returns a dict."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 24, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(24), nn.Linear(24, num_classes)
        self.register_buffer("order", torch.arange(24).flip(0))
        self.register_buffer("unsaved", torch.ones(1, dtype=torch.int64), persistent=False)
        self.calls: list[int] = []
        self.register_forward_hook(Normed.count)

    def count(self, args: object, output: object) -> None:
        self.calls.append(1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = torch.relu(self.norm(self.conv(torch.relu(self.stem(x)))))
        return {"logits": self.head(x.mean((2, 3))[:, self.order])}


@pytest.fixture(scope="module")
def held_out() -> tuple[Tensor, Tensor]:
    from edgefl.data.mix import load

    test = load("digits").test
    return torch.tensor(test.x[:]), torch.tensor(test.y[:])


def accuracy(network: nn.Module, samples: tuple[Tensor, Tensor]) -> float:
    x, y = samples
    with torch.no_grad():
        output = network(x)
    logits = output["logits"] if isinstance(output, dict) else output
    return float((logits.argmax(1) == y).double().mean())


@pytest.fixture(scope="module", params=["fedavg", "fedhm", "heterofl", "fedpara", "prism", "splitmix"])
def run(request, tmp_path_factory):
    several = {"tiers": (1.0, 0.5)} if request.param in ("fedhm", "heterofl", "prism", "splitmix") else {}
    config = edgefl.RunConfig(model=Normed, method=request.param, **several, **SMALL)
    return edgefl.simulate(config, tmp_path_factory.mktemp("run") / "run")


def test_a_tiers_network_has_the_accuracy_of_its_row(run, held_out):
    for row in run.tiers:
        network = run.network(row.tier)
        assert not network.training
        assert accuracy(network, held_out) == pytest.approx(row.accuracy)
        if run.summary["method"] != "splitmix":  # which has several networks in one
            assert type(network) is Normed
            assert network.calls == [1]  # the hook of its own is there
            assert len(network._forward_hooks) == 1  # and no other


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_caller_that_computes_no_gradients_gets_the_same_network(mode, run):
    tier = run.tiers[-1].tier
    with mode():
        network = edgefl.load_run(run.folder).network(tier)
    expected = run.network(tier).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())
    assert not any(parameter.is_inference() for parameter in network.parameters())


def test_the_largest_tier_is_the_usual_one(run, held_out):
    assert accuracy(run.network(), held_out) == pytest.approx(max(run.tiers, key=lambda row: row.tier).accuracy)


def test_a_dense_network_of_full_width_is_what_its_author_would_save(run, held_out):
    network = run.network()
    if run.summary["method"] == "splitmix":
        pytest.skip("its networks are narrow")
    other = Normed()
    other.load_state_dict(network.state_dict())  # every name and shape, counters and indices included
    assert list(network.state_dict()) == list(other.state_dict())
    assert accuracy(other.eval(), held_out) == accuracy(network, held_out)


def test_weights_are_written_for_every_tier(run, called, tmp_path):
    code, out, _ = called("export", str(run.folder), "--format", "weights", "--out", str(tmp_path / "weights"))
    assert code == 0
    assert "written" in out
    for row in run.tiers:
        found = safetensors.torch.load_file(tmp_path / "weights" / f"{row.tier:g}.safetensors")
        state = run.network(row.tier).state_dict()
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.fixture(scope="module")
def personal(tmp_path_factory):
    return edgefl.simulate(edgefl.RunConfig(model=Normed, method="fedper", **SMALL), tmp_path_factory.mktemp("personal") / "run")


def test_clients_with_heads_of_their_own_have_one_body(personal):
    first, second = (personal.network(client=client).state_dict() for client in (0, 1))
    same = {name for name in first if torch.equal(first[name], second[name])}
    assert first.keys() - same == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"tier": 0.3}, r"^tier: got 0\.3, expected one of this run's, 1$"),
        ({"client": 4}, "^client: got 4, expected 0 to 3$"),
        ({"client": 1, "tier": 0.5}, r"^tier: client 1 trained tier 1, got 0\.5; leave one of the two out$"),
    ],
)
def test_what_a_run_has_not_is_refused(personal, asked, told):
    with pytest.raises(InputError, match=told):
        personal.network(**asked)


def test_a_client_of_a_run_with_one_model_has_no_network_of_its_own(run):
    with pytest.raises(InputError, match="^client: with .* all clients of a tier have one network; give a tier instead$"):
        run.network(client=0)


def test_weights_are_written_whole_or_not_at_all(personal, called, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, _, told = called("export", str(personal.folder), "--format", "weights", "--out", str(tmp_path / "full"))
    assert (code, [path.name for path in (tmp_path / "full").iterdir()]) == (2, ["file"])
    assert "exists and is not an empty folder" in told
    code, _, told = called("export", str(personal.folder), "--format", "weights", "--fp16", "--out", str(tmp_path / "new"))
    assert (code, (tmp_path / "new").exists()) == (2, False)
    assert "--format weights needs a run, and takes no options of a bundle" in told
