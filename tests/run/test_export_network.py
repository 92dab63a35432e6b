"""The bundle of a network without a run: verified, trained by the client without torch, and refused with a reason."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load
from safetensors.torch import save_file
from torch import nn

import edgefl
from edgefl.cli.main import group
from edgefl.errors import ConfigError, InputError
from edgefl.methods.create import create
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.records import Tier
from edgefl.rng import generator, torch_seeded
from edgefl.run.network import with_weights
from tests.command import edgefl as command
from tests.mobile import MobileNet


class Activated(nn.BatchNorm2d):
    def forward(self, x):
        return nn.functional.hardswish(super().forward(x))


class Block(nn.Module):
    """A depthwise convolution with squeeze-and-excite and a residual."""

    def __init__(self, channels):
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = Activated(channels)
        self.squeeze, self.excite = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x):
        y = self.norm(self.depth(x))
        return x + y * nn.functional.hardsigmoid(self.excite(nn.functional.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))


def mobile():
    with torch_seeded(generator(0, "mobile")):
        head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, 3)]
        return nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), Activated(6), Block(6), *head)


def test_a_mobile_network_trains_in_the_client_without_torch(tmp_path):
    bundle = edgefl.export_network(mobile(), torch.randn(2, 1, 11, 11), tmp_path / "bundle", client=True, lr=0.1)
    report = edgefl.verify(bundle)
    assert report.max_abs_errors["1"] < 1e-4
    assert report.max_loss_errors["1"] < 1e-3
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (rng.standard_normal((60, 1, 11, 11)) + y[:, None, None, None]).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=y)

    def client(*order):
        program = [sys.executable, str(bundle / "client/python/edgefl_client.py"), *map(str, order)]
        return subprocess.run(program, capture_output=True, text=True, check=True, cwd=tmp_path)

    states = [tmp_path / f"{name}.state" for name in ("first", "again", "other")]
    for path, seed in zip(states, (1, 1, 2), strict=True):
        client("train", bundle, "1", "data.npz", "--out", path, "--epochs", 4, "--seed", seed)
    first, again, other = (path.read_bytes() for path in states)
    assert len(first) == len(again)
    assert other != first
    stored = [load(content) for content in (first, again, other)]
    assert all(np.array_equal(value, stored[1][name]) for name, value in stored[0].items())
    assert not all(np.array_equal(value, stored[2][name]) for name, value in stored[0].items())


def test_token_ids_and_no_torch_left_in_another_mode(tmp_path):
    network = nn.Sequential(nn.EmbeddingBag(9, 5), nn.Linear(5, 3)).train()
    before = [p.detach().clone() for p in network.parameters()]
    bundle = edgefl.export_network(network, torch.randint(9, (4, 6)).clamp(min=0), tmp_path / "bundle", optimizer="adam")
    edgefl.verify(bundle)
    assert network.training
    assert all(torch.equal(one, other) for one, other in zip(before, network.parameters(), strict=True))


def test_a_network_is_exported_where_no_gradients_are_computed(tmp_path):
    with torch.inference_mode():
        network, samples = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(2, 4)
        edgefl.export_network(network, samples, tmp_path / "bundle", method="heterofl", tiers=(0.5,), sign=False)
        assert torch.is_inference_mode_enabled()


class Masked(nn.Module):
    """Attention over token ids with a mask; its output is a table, as that of transformers."""

    def __init__(self):
        super().__init__()
        self.words, self.attention, self.head = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None):
        x = self.words(input_ids)
        y, _ = self.attention(x, x, x, attention_mask == 0, need_weights=False)
        return {"logits": self.head((x + y).mean(1)), "states": y}


def test_ids_and_a_mask_are_two_inputs_that_the_client_trains_with(tmp_path, monkeypatch):
    (tmp_path / "lab.py").write_text("from tests.run.test_export_network import Masked\n")
    monkeypatch.chdir(tmp_path)
    inputs = ("--input", "input_ids=int64:5", "--input", "attention_mask=int64:5")
    done = command("export", "--network", "lab.py:Masked", *inputs, "--with-client", "--out", "bundle")
    assert done.returncode == 0, done.stderr
    edgefl.verify(tmp_path / "bundle")
    stored = load((tmp_path / "bundle/1/reference.safetensors").read_bytes())
    ids, mask = stored["x.input_ids"], stored["x.attention_mask"]
    assert [int(ids.max()) in range(2, 9), int(mask.max()), mask[:, 0].tolist()] == [True, 1, [1] * 4]
    ids, mask = np.random.default_rng(0).integers(9, size=(40, 5)), np.arange(5) <= np.arange(40)[:, None] % 5
    np.savez(tmp_path / "data.npz", input_ids=ids, attention_mask=mask, y=np.arange(40) % 3)
    program = [sys.executable, "bundle/client/python/edgefl_client.py", "train", "bundle", "1", "data.npz", "--out", "state"]
    subprocess.run(program, check=True, capture_output=True)
    assert load((tmp_path / "state").read_bytes())


def test_a_module_with_attention_of_torch_is_exported_with_its_weights(tmp_path):
    network, samples = Masked(), {"input_ids": torch.arange(10).reshape(2, 5) % 9, "attention_mask": torch.ones(2, 5).long()}
    edgefl.export_network(network, samples, tmp_path / "bundle", sign=False)
    stored = load((tmp_path / "bundle/1/parameters.safetensors").read_bytes())
    packed = np.concatenate([stored[f"attention.{part}_proj.weight"] for part in "qkv"])
    np.testing.assert_array_equal(packed, network.attention.in_proj_weight.detach().numpy())


@pytest.mark.parametrize(
    ("inputs", "code", "message"),
    [
        (["input_ids=int64:5", "attention_mask=int64:4"], 2, "does not take samples input_ids=int64:5, attention_mask=int64:4"),
        (["input_ids=int64:5", "mask=int64:5"], 2, "forward has no argument 'mask'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(tmp_path, inputs, code, message):
    given = [word for one in inputs for word in ("--input", one)]
    done = command("export", "--network", f"{__name__}:Masked", *given, "--out", str(tmp_path / "bundle"))
    assert (done.returncode, (tmp_path / "bundle").exists()) == (code, False)
    assert message in done.stderr


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            {"input_ids": torch.ones(2, 5).long(), "mask": torch.ones(2, 4)},
            "forward has no argument 'mask'; .*takes input_ids",
        ),
        (
            {"input_ids": torch.ones(2, 5).long(), "attention_mask": torch.ones(3, 5)},
            r"got .* expected .* as many of every input",
        ),
    ],
)
def test_other_names_and_numbers_of_samples_are_refused(samples, message, tmp_path):
    with pytest.raises(InputError, match=message):
        edgefl.export_network(Masked(), samples, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


class Branches(nn.Linear):
    def forward(self, x):
        if x.sum() > 0:
            x = -x
        return super().forward(x)


def test_a_network_that_depends_on_values_is_refused_with_the_line(tmp_path):
    with pytest.raises(
        InputError, match=r"depends on the values of its input, .* \(at test_export_network.py:\d+: if x.sum\(\) > 0:"
    ):
        edgefl.export_network(Branches(4, 3), torch.randn(2, 4), tmp_path / "bundle")


@pytest.mark.parametrize(
    ("samples", "names", "message"),
    [
        (torch.zeros(1, 1, 11, 11), (), "expected at least two, float32 or int64"),
        (torch.zeros(2, 3, 11, 11), (), r"Sequential does not take samples \(2, 3, 11, 11\)"),
        (torch.zeros(2, 1, 11, 11), ("a",), "got 1 names, the network has 3 classes"),
    ],
)
def test_wrong_input_is_refused_and_nothing_is_written(tmp_path, samples, names, message):
    with pytest.raises(InputError, match=message):
        edgefl.export_network(mobile(), samples, tmp_path / "bundle", class_names=names)
    assert not (tmp_path / "bundle").exists()


def normed():
    with torch_seeded(generator(0, "normed")):
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0}, "lr must be above 0, got 0"),
        ({"momentum": 1.0}, "momentum must be below 1, got 1"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_settings_of_training_are_checked_first(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=f"^{message}"):
        edgefl.export_network(normed(), torch.randn(2, 4), tmp_path / "bundle", **settings)


def test_negative_ids_and_empty_tensors_are_named(tmp_path):
    with pytest.raises(InputError, match=r"^samples: got the id -1, expected ids of at least 0$"):
        edgefl.export_network(nn.Embedding(9, 3), torch.full((4, 6), -1), tmp_path / "bundle")
    with pytest.raises(InputError, match=r"^samples: got the shape \(2, 0\), which has no values$"):
        edgefl.export_network(nn.Embedding(9, 3), torch.zeros(2, 0).long(), tmp_path / "bundle")
    network = normed()
    network.register_buffer("nothing", torch.empty(0))
    with pytest.raises(InputError, match=r"^Sequential: nothing has no values, and no place in a bundle; remove it"):
        edgefl.export_network(network, torch.randn(2, 4), tmp_path / "bundle")


def test_batch_normalisation_of_vectors_trains_with_one_sample(tmp_path):
    bundle = edgefl.export_network(normed(), torch.randn(2, 4), tmp_path / "bundle", batch_size=1)
    assert edgefl.verify(bundle).max_loss_errors["1"] < 1e-3


def test_a_network_without_logits_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"Conv2d returns \(2, 2, 9, 9\), expected logits \(2, classes\)"):
        edgefl.export_network(nn.Conv2d(1, 2, 3), torch.zeros(2, 1, 11, 11), tmp_path / "bundle")


def test_the_command_writes_the_bundle_of_a_factory_with_weights(tmp_path, capsys, monkeypatch):
    from safetensors.torch import load_file, save_file

    from edgefl.cli.main import main

    (tmp_path / "lab.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))\n"
    )
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    save_file(network.state_dict(), tmp_path / "trained.safetensors")
    save_file({"1.weight": torch.zeros(3, 13), "1.bias": torch.zeros(3)}, tmp_path / "wrong.safetensors")

    def run(weights, *more):
        order = [
            "export",
            "--network",
            f"{tmp_path / 'lab.py'}:net",
            "--weights",
            str(tmp_path / weights),
            "--input",
            "1x3x4",
            *more,
        ]
        monkeypatch.setattr(sys, "argv", ["edgefl", *order, "--out", str(tmp_path / "bundle")])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    assert run("wrong.safetensors") == 2
    assert "1.weight has shape (3, 13), expected (3, 12)" in capsys.readouterr().err
    assert run("trained.safetensors") == 0
    edgefl.verify(tmp_path / "bundle")
    assert torch.equal(load_file(tmp_path / "bundle/1/parameters.safetensors")["1.weight"], network[1].weight)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.head(self.norm(self.stem(x)).relu()).relu().flatten(1))


def trained_elsewhere(factory):
    """A network after a step, with running statistics that are not the initial ones."""
    with torch_seeded(generator(0, "elsewhere")):
        network, x = factory(), torch.randn(8, 1, 8, 8)
        nn.functional.cross_entropy(network(x), torch.arange(8) % 4).backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.1 * parameter.grad
    return network


def predicted(folder, x):
    """What ``predict.onnx`` returns with the tensors of ``parameters.safetensors``."""
    session = ort.InferenceSession(folder / "predict.onnx")
    stored = load((folder / "parameters.safetensors").read_bytes())
    values = {f"{kind}.{name}": value for kind in "psf" for name, value in stored.items()} | {"x": x}
    return session.run(None, {given.name: values[given.name] for given in session.get_inputs()})[0]


def exported(factory, network, out, method, option):
    """Write the bundle of a network by the command: its factory makes other weights, a file has those of ``network``."""
    weights = out.parent / "trained.safetensors"
    save_file(network.state_dict(), weights)
    options = ("--method-option", option) if option else ()
    order = "export", "--network", f"{__name__}:{factory.__name__}", "--input", "1x8x8", "--weights", str(weights)
    done = CliRunner().invoke(
        group, [*order, "--method", method, *options, "--tiers", "1,0.5", "--with-client", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.parametrize(
    ("factory", "method", "option"),
    [(Small, "heterofl", ""), (MobileNet, "fedhm", "factorize=1x1"), (Small, "depthfl", "")],
    ids=["cut", "factorized", "exits"],
)
def test_a_method_makes_a_tier_for_each_ratio_from_the_given_weights(factory, method, option, tmp_path):
    network, x = trained_elsewhere(factory), torch.randn(3, 1, 8, 8)
    bundle = exported(factory, network, tmp_path / "bundle", method, option)
    assert edgefl.verify(bundle).max_loss_errors.keys() == {"1", "0.5"}
    named = CustomArchitecture.of(f"{__name__}:{factory.__name__}", {"": InputSpec((1, 8, 8))}, 4)
    architecture, tiers = with_weights(named, str(tmp_path / "trained.safetensors"), False), (Tier(1.0), Tier(0.5))
    made = create(method, dict([option.split("=")]) if option else {}, tiers=(1.0, 0.5))
    state = made.init(architecture, tiers, generator(0, "init"))
    for tier in tiers:
        with torch.no_grad():
            expected = made.deploy(state, tier)(x)
        np.testing.assert_allclose(predicted(bundle / tier.label, x.numpy()), expected, atol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(predicted(bundle / "1", x.numpy()), network.eval()(x), atol=1e-5)
    before = load((bundle / "0.5/parameters.safetensors").read_bytes())
    if method == "heterofl":
        assert np.array_equal(before["stem.weight"], network.stem.weight.detach()[:4])
        assert np.array_equal(before["norm.running_mean"], network.norm.running_mean[:4])
    elif method == "fedhm":
        u, values, v = np.linalg.svd(network.block.expand.weight.detach().flatten(1).numpy())
        factors = [before[f"block.expand.{part}.weight"][:, :, 0, 0] for part in "vu"]
        np.testing.assert_allclose(factors[0] @ factors[1], (u[:, :4] * values[:4]) @ v[:4], atol=1e-5)
    else:
        assert {name.partition(".")[0] for name in before} == {"body", "exits"}
    np.savez(tmp_path / "data.npz", x=np.tile(x.numpy(), (2, 1, 1, 1)), y=np.arange(6) % 4)
    program = [sys.executable, "bundle/client/python/edgefl_client.py", "train", "bundle", "0.5", "data.npz", "--out", "state"]
    subprocess.run(program, check=True, capture_output=True, cwd=tmp_path)
    after = load((tmp_path / "state").read_bytes())
    assert any(not np.array_equal(value, after[name]) for name, value in before.items() if name in after)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"tiers": (1, 0.5)}, "tiers: a network as it is has one size; choose a method"),
        ({"method": "fedpara"}, "weights: the server of .* does not begin with a dense network of width 1"),
        ({"method": "fedavg", "tiers": (1, 0.5)}, "fedavg trains one size only"),
        ({"method": "fedhm", "method_options": {"rank": 1}}, "fedhm has no such option"),
    ],
)
def test_methods_and_tiers_that_do_not_fit_are_refused(how, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        edgefl.export_network(MobileNet(), torch.zeros(2, 1, 8, 8), tmp_path / "bundle", **how)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (("runs/0001", "--classes", "3"), "--classes, --loss, --data, --method, --method-option and --tiers need --model"),
        (("runs/0001", "--method", "fedhm"), "--method, --method-option and --tiers need --model"),
        (("runs/0001", "--tiers", "1,0.5", "--format", "csv"), "--tiers need --model"),
        (("--network", "tests.mobile:MobileNet", "--input", "1x8x8", "--tiers", "1,0.5"), "one size; choose a method"),
    ],
)
def test_the_command_takes_a_method_for_a_network_and_tiers_with_a_method(order, message, tmp_path):
    done = CliRunner().invoke(group, ["export", *order, "--out", str(tmp_path / "bundle")])
    assert message in f"{done.output}{done.exception}"
    assert isinstance(done.exception, ConfigError) or done.exit_code == 2
    assert not (tmp_path / "bundle").exists()


def test_a_factory_gets_the_classes_of_the_command_line(tmp_path):
    (tmp_path / "lab.py").write_text("from torch import nn\n\ndef net(classes):\n    return nn.Linear(4, classes)\n")
    done = command("export", "--network", "lab.py:net", "--input", "4", "--classes", "5", "--out", "bundle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "bundle" / "manifest.json").read_text())["classes"] == 5
