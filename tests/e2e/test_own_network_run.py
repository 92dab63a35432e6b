"""A network from outside the package, in a folder of its own, through every command."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from edgefl import RunConfig, simulate
from edgefl.errors import CheckpointError, ConfigError, InputError, WireError
from edgefl.models.base import Architecture
from edgefl.run.prepare import prepare
from tests.command import edgefl
from tests.requirements import needs
from tests.runs import checkpoint_of, lines_of, stopped_after
from tests.serve.serving import serving
from tests.tools.tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

MOBILE = """
import torch
from torch import nn

class ActiveNorm(nn.BatchNorm2d):
    def forward(self, x):
        return nn.functional.hardswish(super().forward(x))

class Squeeze(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        weights = self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True))))
        return x * nn.functional.hardsigmoid(weights)

class Block(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False), ActiveNorm(hidden),
            nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False), ActiveNorm(hidden),
            Squeeze(hidden), nn.Conv2d(hidden, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return x + self.body(x)

class Mobile(nn.Module):
    def __init__(self, in_chans=3, num_classes=1000):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_chans, 8, 3, 2, 1, bias=False), ActiveNorm(8))
        self.blocks = nn.Sequential(Block(8, 16))
        self.mix, self.head = nn.Conv2d(8, 16, 3, 1, 1), nn.Linear(16, num_classes)

    def forward(self, x):
        return self.head(torch.relu(self.mix(self.blocks(self.stem(x)))).mean((2, 3)))

def mobile(num_classes, in_chans):
    return Mobile(in_chans, num_classes)
"""
SMALL = ("--rounds", "2", "--clients", "4", "--local-epochs", "1", "--data-share", "0.2", "--eval-samples", "40")
SMALL += ("--tiers", "1,0.5", "--conditions", "ideal")
KEYS = {
    "rounds": 2,
    "clients": 4,
    "local_epochs": 1,
    "data_share": 0.2,
    "eval_samples": 40,
    "tiers": (1.0, 0.5),
    "conditions": "ideal",
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with ``net.py``, which is the working directory."""
    (tmp_path / "net.py").write_text(MOBILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> str:
    done = edgefl(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_inspect_profile_and_plan_count_the_network_at_the_shape_of_the_data(lab):
    given = ("net.py:mobile", "--input", "1x8x8", "--classes", "10")
    assert "heterofl" in run("profile", "--model", *given, "--method", "heterofl", "--tiers", "1,0.5", "--format", "csv")
    assert run("plan", *given, "--method", "heterofl", "--macs", "10k")
    by_data = run("inspect", "net.py:mobile", "--data", "digits", "--method", "fedhm")
    assert "blocks.0.body.2" in by_data
    assert by_data == run("inspect", *given, "--method", "fedhm")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ``net.py``, runs of it by width, rank, a shared basis and depth in ``all``, and the bundle of one."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "net.py").write_text(MOBILE, encoding="utf-8")
    methods = ("--methods", "heterofl@0.5,fedhm,flanc@0.5,depthfl@0.5", "--method-option", "fedhm.factorize=conv,1x1")
    few = ("--rounds", "1", "--clients", "2", "--data-share", "0.1", "--eval-samples", "40", "--no-bundle", *SMALL[-4:])
    for order in (("compare", *methods, "--model", "net.py:mobile", *few, "--out", "all"), ("export", FEDHM, *CLIENT)):
        done = edgefl(*order, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


FEDHM = "all/fedhm/seed-0"
CLIENT = ("--out", "bundle", "--with-client")


def test_runs_of_four_methods_are_compared_with_tiers_that_are_smaller(compared):
    assert (compared / "all/compare.html").is_file()
    tiers = {}
    for name in ("fedhm", "heterofl@0.5", "flanc@0.5", "depthfl@0.5"):
        found = RunConfig.load(compared / f"all/{name}/seed-0/config.toml", {})
        assert found.model == f"{compared / 'net.py'}:mobile"
        assert len((found.sources or {})["model"]) == 64
        tiers[name] = json.loads((compared / f"all/{name}/seed-0/summary.json").read_text(encoding="utf-8"))["tiers"]
    whole = tiers["fedhm"][0]["macs_forward"]
    assert {name: found[-1]["macs_forward"] < 0.85 * whole for name, found in tiers.items()} == dict.fromkeys(tiers, True)
    bundle = json.loads((compared / "bundle/manifest.json").read_text(encoding="utf-8"))
    names = bundle["tiers"][1]["train"]["trained"]
    assert [name for name in names if name.startswith("blocks.0.body.0.")] != ["blocks.0.body.0.weight"]


def test_its_bundle_is_verified_and_trains_in_the_client_without_torch(compared, tmp_path):
    assert json.loads((compared / "bundle/manifest.json").read_text(encoding="utf-8"))["model"] == "net.py:mobile"
    assert "0.5" in run("verify", str(compared / "bundle"))
    data = Path(tmp_path, "data.npz")
    np.savez(data, **dict(zip("xy", own_data(), strict=True)))
    program = [sys.executable, str(compared / "bundle/client/python/edgefl_client.py")]
    order = ["train", str(compared / "bundle"), "0.5", str(data), "--out", str(tmp_path / "state"), "--epochs", "2"]
    done = subprocess.run([*program, *order], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "state").stat().st_size > 1000


def test_a_browser_trains_it(compared, browser, ort_web):
    x, y = own_data()
    with serving(compared / "bundle", ort_web) as server, contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(server.url)
        page.wait_for_selector("#tier:not([disabled])")
        page.evaluate("() => edgefl.choose('0.5')")
        page.wait_for_selector("#tier:not([disabled])")
        check = page.evaluate("() => edgefl.check()")
        np.testing.assert_allclose(check["losses"], check["expected"], rtol=1e-3)
        assert check["apart"] <= 1
        losses = page.evaluate("given => edgefl.train(given)", {"x": x.tolist(), "y": y.tolist(), "epochs": 4})["losses"]
        assert losses[-1] < losses[0]


def own_data() -> tuple[np.ndarray, np.ndarray]:
    """Return samples (30, 1, 8, 8) of two classes, of which one is bright."""
    y = np.arange(30) % 2
    return np.random.default_rng(0).normal(3.0 * y[:, None, None, None], 1, (30, 1, 8, 8)).astype(np.float32), y


def test_policies_are_compared_without_training(lab):
    few = ("--rounds", "2", "--clients", "4", "--json")
    assert "heterofl" in run("whatif", "--model", "net.py:mobile", "--method", "heterofl", "--deadlines", "10", *few)
    run("simulate", "--model", "net.py:mobile", "--dry-run", *few, "--out", "dry")


def test_workers_and_an_interruption_leave_the_bits_alone_wherever_it_is_resumed(lab):
    config = RunConfig(model="net.py:mobile", method="heterofl", **KEYS)
    whole = stopped_after(config, lab / "whole", 2)
    shared = stopped_after(config.model_copy(update={"engine": "pool", "workers": 2}), lab / "shared", 1)
    (lab / "elsewhere").mkdir()
    done = edgefl("simulate", "--out", str(shared), "--resume", "--workers", "2", cwd=lab / "elsewhere")
    assert done.returncode == 0, done.stderr
    assert lines_of(shared) == lines_of(whole)
    assert checkpoint_of(shared, 2).name == checkpoint_of(whole, 2).name


def test_a_changed_source_is_said_on_resume_and_refused_if_its_shapes_differ(lab):
    config = RunConfig(model="net.py:mobile", method="fedavg", **KEYS | {"tiers": (1.0,)})
    said: list[str] = []
    first = stopped_after(config, lab / "first", 1)
    second = shutil.copytree(first, lab / "second")
    (lab / "net.py").write_text(MOBILE + "\n# later\n", encoding="utf-8")
    stopped_after(config, first, 2, resume=True, notify=said.append)
    assert "the source of net.py:mobile has changed since this run began" in said[0]
    wider = MOBILE.replace("nn.Conv2d(8, 16, 3", "nn.Conv2d(8, 20, 3").replace("nn.Linear(16", "nn.Linear(20")
    (lab / "net.py").write_text(wider, encoding="utf-8")
    with pytest.raises(CheckpointError, match="another model.*; restore the source that the run began with"):
        simulate(config, second, resume=True)


class Plain(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x.flatten(1))))


def test_factories_classes_and_modules_are_given_from_python(lab):
    keys = KEYS | {"tiers": (1.0,), "method": "fedavg", "rounds": 1}
    assert RunConfig(model=Plain).model == f"{__name__}:Plain"
    stopped_after(RunConfig(model=Plain, **keys | {"engine": "pool", "workers": 2}), lab / "class", 1)
    module = Plain()
    config = RunConfig(model=module, **keys)
    assert str(config.model).startswith("object:Plain-")
    simulate(config, lab / "module")
    stopped_after(RunConfig(model=lambda: Plain(10), **keys), lab / "lambda", 1)
    # A module begins with its own weights, so an equal one has the same name and another one has not.
    same = Plain()
    same.load_state_dict(module.state_dict())
    assert RunConfig(model=same).model == config.model
    assert RunConfig(model=Plain()).model != config.model
    with pytest.raises(
        ConfigError,
        match="Plain is an object that other processes cannot import; define it at the top of a module, or use engine inline",
    ):
        simulate(RunConfig(model=module, **keys | {"workers": 2}), lab / "never")
    assert not (lab / "never").exists()


BAD = """
import torch
from torch import nn
class Depends(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return self.head(x.flatten(1))
class Table(Depends):
    def forward(self, x):
        return {"one": self.head(x.flatten(1)), "two": x}
class Pair(Depends):
    def forward(self, x):
        return self.head(x.flatten(1)), x.flatten(1)
class Mean(Depends):
    def forward(self, x):
        return self.head(x.flatten(1)).mean(0)
def raises():
    raise ValueError("no weights here")
def colour():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 10))
def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
def many():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1000))
def nothing():
    return nn.Flatten()
"""
REFUSED = {
    "bad.py:raises": "bad.py:raises: the factory raised ValueError: no weights here",
    "bad.py:colour": "does not take samples 1x8x8 of digits: ",
    "bad.py:lazy": "1.weight has no shape yet; give its layer all sizes",
    "bad.py:many": "returns 2x1000 for two samples 1x8x8 of digits with 10 classes, expected 2x10; return logits",
    "bad.py:Table": "returns a dict of 2x10 and 2x1x8x8 for two samples 1x8x8 of digits with 10 classes, expected 2x10; return the logits",
    "bad.py:Pair": "returns a tuple of 2x10 and 2x64 for two samples 1x8x8 of digits",
    "bad.py:Mean": "returns 10 for two samples 1x8x8 of digits with 10 classes, expected 2x10; return logits (batch, classes)",
    "own.npz": "unknown model 'own.npz'; a file of a network is an .onnx file, or file.py:function; .npz is neither",
    "bad.py:nothing": "has no parameter to train",
    "bad.py:Depends": "depends on the values of its input, and costs come from shapes alone; leave it out, or switch off the option "
    "that asks for it (transformers: pad_token_id=None, attn_implementation='eager') (at bad.py:9: if x.sum() > 0:)",
    "bad.py:rises": "bad.py has no 'rises'; did you mean 'raises'?",
    "missing.py:net": "cannot be read (No such file or directory)",
    "broken.py:net": "broken.py raised SyntaxError: ",
    "no_such_package.net:small": "no module named 'no_such_package'",
    "object:Net-0123456789ab": "Net was given as an object from Python, which only that process has; give it again",
    "mobile": "unknown model 'mobile'",
    "bad.py:": "is not of the form package.module:NAME",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_a_wrong_network_is_one_message_and_nothing_is_written(lab, spec):
    (lab / "bad.py").write_text(BAD, encoding="utf-8")
    (lab / "broken.py").write_text("def net(:\n", encoding="utf-8")
    done = edgefl("simulate", "--model", spec, *SMALL, "--method", "fedavg", "--tiers", "1", "--out", "never")
    assert (done.returncode, done.stdout) == (2, "")
    assert REFUSED[spec] in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (lab / "never").exists()


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_is_not_installed_is_named_with_its_command(lab, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=f"install it with: pip install {library}"):
        simulate(RunConfig(model=f"{library}:resnet18"), lab / "never")


@needs("timm")
def test_a_network_of_timm_has_the_channels_and_classes_of_the_data(lab):
    tool_of("clock.networks").timm_module()  # a stand-in replaces torchvision
    keys = KEYS | {"tiers": (1.0,), "method": "fedavg", "rounds": 1}
    assert simulate(RunConfig(model="timm:test_resnet", **keys), lab / "run").tiers[0].tier == 1.0


def saved(network: nn.Module, path: Path) -> Path:
    safetensors.torch.save_file(network.state_dict(), path)
    return path


def first_tensors(config: RunConfig) -> dict[str, torch.Tensor]:
    return dict(prepare(config).first_state().tensors)


@pytest.mark.parametrize("method", ["fedhm", "fedavg", "heterofl", "fjord", "fedper", "prism"])
def test_the_server_begins_with_given_weights_also_of_reference_networks(lab, method):
    network = Architecture("cnn-tiny", (1, 8, 8), 10).build()
    path = saved(network, lab / "w.safetensors")
    tiers = (1.0,) if method in ("fedavg", "fedper") else (1.0, 0.5)
    found = first_tensors(RunConfig(model="cnn-tiny", weights="w.safetensors", method=method, clients=4, tiers=tiers))
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in found.items())
    assert RunConfig(weights=path).weights == str(path)


def test_runs_with_weights_resume_with_workers_and_refuse_a_changed_file(lab):
    path = saved(Plain(), lab / "w.safetensors")
    config = RunConfig(model=Plain, weights=str(path), **KEYS | {"tiers": (1.0,), "method": "fedper"})
    whole = stopped_after(config, lab / "whole", 2)
    pool = config.model_copy(update={"engine": "pool", "workers": 2})
    shared = stopped_after(pool, stopped_after(pool, lab / "shared", 1), 2, resume=True)
    assert checkpoint_of(shared, 2).name == checkpoint_of(whole, 2).name
    again = stopped_after(config, lab / "again", 1)
    saved(Plain(), path)
    with pytest.raises(CheckpointError, match=r"w\.safetensors has changed since this run began; restore the file"):
        simulate(config, again, resume=True)


def test_a_classifier_of_another_size_is_left_out_only_when_asked(lab):
    net = {"model": Plain, "method": "fedavg", "tiers": (1.0,), "clients": 4}
    saved(Plain(7), lab / "w.safetensors")
    problem = r"head.weight has shape \(7, 16\), expected \(10, 16\); head.bias .*; give --new-classifier to leave head out"
    with pytest.raises(ConfigError, match=problem):
        prepare(RunConfig(weights="w.safetensors", **net))
    random, given = (
        first_tensors(RunConfig(**keys, **net)) for keys in ({}, {"weights": "w.safetensors", "new_classifier": True})
    )
    assert [name for name, tensor in random.items() if torch.equal(tensor, given[name])] == ["head.weight", "head.bias"]
    with pytest.raises(ConfigError, match="new_classifier: the last layer begins with random values unless there are weights"):
        RunConfig(new_classifier=True)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(64, 10)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.head(self.two(self.one(x)).flatten(1))


def test_a_file_needs_one_name_of_a_tied_tensor(lab):
    tensors = Tied().state_dict()
    config = {"model": Tied, "weights": "w.safetensors", "method": "fedavg", "tiers": (1.0,), "clients": 4}
    for left_out, accepted in (("two.weight",), True), (("one.weight",), True), (("one.weight", "two.weight"), False):
        safetensors.torch.save_file(
            {name: tensor for name, tensor in tensors.items() if name not in left_out}, lab / "w.safetensors"
        )
        if accepted:
            found = first_tensors(RunConfig(**config))
            assert found.keys() == tensors.keys() - {"two.weight"}  # one name of the tied tensor travels
            assert all(torch.equal(tensor, tensors[name]) for name, tensor in found.items())
        else:
            with pytest.raises(WireError, match=r"missing or not expected: one.weight$"):
                prepare(RunConfig(**config))


@pytest.mark.parametrize("method", ["flanc", "fedpara", "splitmix", "standalone"])
def test_methods_that_do_not_begin_with_a_dense_network_refuse_weights(lab, method):
    saved(Architecture("cnn-tiny", (1, 8, 8), 10).build(), lab / "w.safetensors")
    with pytest.raises(ConfigError, match="weights: the server of .* does not begin with a dense network of width 1"):
        prepare(RunConfig(model="cnn-tiny", weights="w.safetensors", method=method, clients=4))


def test_weights_of_another_network_name_the_first_five_differences(lab):
    saved(Architecture("resnet9", (1, 8, 8), 10).build(), lab / "w.safetensors")
    done = edgefl("simulate", "--weights", "w.safetensors", "--out", "never")
    assert (done.returncode, (lab / "never").exists()) == (2, False)
    assert re.search(r"tensors missing or not expected: (\S+, ){4}\S+ and \d+ more$", done.stderr.strip())
