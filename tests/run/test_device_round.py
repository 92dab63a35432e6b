"""A round with update files: every tensor at its place, by the run's own rules, or one message and nothing written."""

from __future__ import annotations

import json
import math
import re
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from command import edgefl
from handmade import changed
from signing import device_key, request, signed_update

from edgefl import RunConfig
from edgefl.bundle.manifest import Manifest, Objective, TierEntry, TrainEntry
from edgefl.bundle.manifest_file import read
from edgefl.bundle.write import write
from edgefl.client.parts import first_personal, trained_shapes
from edgefl.errors import BundleError, CheckpointError, InputError, WireError
from edgefl.run import device_round as fedround
from edgefl.run.device_round import FedRound, fed_round
from edgefl.run.enroll import enroll, revoke
from edgefl.run.folder import RunFolder
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.server.checkpoint import of_file, to_bytes
from edgefl.server.exchange import device_submodel
from edgefl.server.state import ServerState
from edgefl.util.files import sha256, write_bytes

SMALL = {
    "dataset": "digits", "model": "mlp", "method": "fedavg", "clients": 10, "rounds": 3, "local_epochs": 1, "eval_samples": 50,
    "tiers": (1.0,), "conditions": "ideal", "deadline_s": 10.0,
}  # fmt: skip


def write_bundle(run: Run, server_state: ServerState, folder: Path, round_: int, state: str) -> None:
    """Write a bundle as a device would get it, but for its graphs, which nobody runs here."""
    entries, contents = [], {}
    for tier in run.tiers:
        _, tensors = device_submodel(run.method, server_state, run.rules, run.config.clients, tier)
        personal = first_personal(run.method, run.architecture, tier, run.config.seed)
        shapes = {name: tuple(tensor.shape) for name, tensor in {**tensors, **personal}.items() if ":" not in name}
        parameters = trained_shapes(run.method, run.architecture, tier).keys() | personal.keys()
        paths = {key: f"{tier.label}/{key}" for key in ("forward", "reference", "train", "predict", "train_reference")}
        contents |= dict.fromkeys(paths.values(), b"")
        held = {name: tensor.contiguous() for name, tensor in {**tensors, **personal}.items()}
        contents[f"{tier.label}/parameters"] = safetensors.torch.save(held)
        train = TrainEntry(
            graphs=(paths["train"],), predict=paths["predict"], parameters=f"{tier.label}/parameters", reference=paths["train_reference"],
            optimizer="sgd", lr=0.1, momentum=0.0, batch_size=4, epochs=1,
            trained={name: shape for name, shape in shapes.items() if name in parameters},
            statistics={name: shape for name, shape in shapes.items() if name not in parameters}, frozen={}, personal=tuple(personal),
            upload=run.method.upload_shapes(run.architecture, tier), objective=Objective(name=run.config.objective),
        )  # fmt: skip
        entries.append(TierEntry(
            tier=tier.number, label=tier.label, device=None, opset=20, forward=paths["forward"], reference=paths["reference"], params=1,
            batch_size=4, costs={}, uncounted_ops=(), accuracy_onnx=None, accuracy_torch=None, parity_max_abs_error=0.0, train=train,
        ))  # fmt: skip
    data = run.data
    manifest = Manifest(
        edgefl_version="0", method=run.config.method, model="mlp", dataset="digits", round=round_, state_sha256=state,
        input_shape=data.input_shape, classes=data.classes, class_names=data.class_names, preprocessing={}, tiers=tuple(entries), files={},
    )  # fmt: skip
    write(folder, manifest, contents)


@pytest.fixture(autouse=True)
def _bundles_without_graphs(monkeypatch):
    """Exporting takes seconds, and is tested where bundles are."""

    def build(run, tiers, source, out, say, wanted):
        write_bundle(run, of_file(out.parent / "model.safetensors"), out, source.round, source.state_sha256)

    monkeypatch.setattr("edgefl.run.device_round.build_bundle", build)


@dataclass(frozen=True)
class Offered:
    """A run with its bundle, and a folder for updates beside it."""

    run: Path

    @property
    def bundle(self) -> Path:
        return self.run / "bundle"

    @property
    def inbox(self) -> Path:
        folder = self.run.parent / f"inbox of {self.run.name}"
        folder.mkdir(exist_ok=True)
        return folder

    def state(self) -> ServerState:
        return of_file(self.run / "model.safetensors")

    def given(self, label: str = "1") -> dict[str, np.ndarray]:
        return safetensors.numpy.load((self.bundle / label / "parameters").read_bytes())

    def upload(self, label: str = "1") -> dict[str, tuple[int, ...]]:
        entry = next(entry for entry in read(self.bundle).tiers if entry.label == label)
        return dict(entry.train.upload)

    def send(self, client: str, tensors: dict[str, np.ndarray], samples: int = 1, label: str = "1", **more: str) -> Path:
        manifest = read(self.bundle)
        about = {
            "format": "edgefl-update", "version": "1", "bundle": manifest.manifest_sha256, "round": str(manifest.round), "tier": label,
            "samples": str(samples), "steps": "1", "client": client, **more,
        }  # fmt: skip
        path = self.inbox / f"{client}.safetensors"
        path.write_bytes(safetensors.numpy.save(tensors, metadata=about))
        return path

    def sends_back(self, client: str, change: float = 0.0, label: str = "1", samples: int = 1) -> dict[str, np.ndarray]:
        """Send what was handed out, every value changed by as much."""
        tensors = {name: self.given(label)[name] + np.float32(change) for name in self.upload(label)}
        self.send(client, tensors, samples, label)
        return tensors

    def next(self, **options) -> Offered:
        return Offered(self.play(**options).folder)

    def play(self, *, keep_anyway: bool = True, **options) -> FedRound:
        """Play a round; whether the model gets worse matters to few tests."""
        out = self.run.parent / f"after {self.run.name}"
        return fed_round(self.bundle, self.inbox, out, keep_anyway=keep_anyway, **options)


def offered(folder: Path, **keys) -> Offered:
    """Return a run that has only begun: the first state counts as that after three rounds."""
    run = prepare(RunConfig.of({**SMALL, **keys}))
    target = RunFolder(folder)
    target.start(run.config)
    state = replace(run.start(), round=3)
    content = to_bytes(state)
    write_bytes(folder / "model.safetensors", content)
    write_bundle(run, state, folder / "bundle", 3, sha256(content))
    return Offered(folder)


def moved(tensors: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    # A file may be read in any order of its tensors: they are sorted here, so that each gets its own numbers.
    return {name: (tensors[name] + rng.normal(size=tensors[name].shape)).astype(np.float32) for name in sorted(tensors)}


def near(state: ServerState, expected: dict[str, np.ndarray]) -> None:
    assert state.model.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(state.model.tensors[name].numpy(), tensor, rtol=1e-4, atol=1e-5, err_msg=name)


# What comes out.


def test_the_next_model_is_the_mean_by_samples(tmp_path):
    at = offered(tmp_path / "run")
    first, second = moved(at.given(), 1), moved(at.given(), 2)
    at.send("a", first, samples=10)
    at.send("b", second, samples=30)
    result = at.play()
    after = Offered(result.folder)
    near(after.state(), {name: 0.25 * first[name] + 0.75 * second[name] for name in first})
    assert (after.state().round, result.round, read(after.bundle).round) == (4, 4, 4)
    assert read(after.bundle).state_sha256 == sha256((after.run / "model.safetensors").read_bytes())
    assert (after.run / "config.toml").read_bytes() == (at.run / "config.toml").read_bytes()
    assert (result.tiers[0]["updates"], result.tiers[0]["samples"], result.refused) == (2, 40, ())
    assert result.accuracy == (result.tiers[0]["before"], result.tiers[0]["after"])
    record = json.loads((after.run / "fed-round.json").read_text())
    assert (record["accuracy"]["before"], record["accuracy"]["after"]) == result.accuracy


def test_accuracies_are_those_of_the_samples_that_the_run_evaluates_on(tmp_path):
    at = offered(tmp_path / "run")
    sent = moved(at.given(), 1)
    at.send("a", sent)
    run = prepare(RunConfig.of(SMALL))
    found = []
    for weights in (at.given(), sent):
        network = run.architecture.build().eval()
        network.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in weights.items()})
        outputs = network(torch.from_numpy(run.test.x.copy())).detach().numpy()
        found.append(float((outputs.argmax(1) == run.test.y).mean()))
    assert at.play().accuracy == tuple(found)
    assert len(run.test) == 50
    assert found[0] != found[1]


def test_the_metric_of_an_own_loss_is_told_as_it_is(tmp_path):
    at = offered(tmp_path / "run", loss="torch.nn.functional:cross_entropy")
    at.send("a", at.given())
    done = edgefl("fed-round", str(at.bundle), "--updates", str(at.inbox), "--out", str(tmp_path / "next"))
    record = json.loads((tmp_path / "next" / "fed-round.json").read_text())
    before, after = (f"{record['accuracy'][when]:.4g}" for when in ("before", "after"))
    assert (done.returncode, record["metric"]) == (0, {"name": "cross entropy", "better": "lower", "share": False}), done.stderr
    assert f"global model: cross entropy {before} before, {after} after round 4, of 1 update" in done.stdout
    assert done.stdout.count(before) >= 2  # of the global model and of its tier


def test_what_only_large_tiers_hold_is_averaged_over_those(tmp_path):
    at = offered(tmp_path / "run", method="heterofl", tiers=(1.0, 0.5))
    whole, half = moved(at.given("1"), 1), moved(at.given("0.5"), 2)
    upload = at.upload("1")
    at.send("a", {name: whole[name] for name in upload}, samples=1, label="1")
    at.send("b", {name: half[name] for name in at.upload("0.5")}, samples=3, label="0.5")
    after = at.next().state()
    for name in upload:
        corner = tuple(slice(0, size) for size in half[name].shape)
        # HeteroFL averages over clients, whatever they have; the classifier's bias is whole in every tier.
        expected = whole[name].copy()
        found = after.model.tensors[name].numpy()
        inside = found[corner]
        weight = (inside - whole[name][corner]) / (half[name] - whole[name][corner])
        assert np.allclose(weight, weight.flat[0], atol=1e-2)
        assert weight.flat[0] in (pytest.approx(0.5, abs=1e-2), pytest.approx(0.75, abs=1e-2))
        expected[corner] = inside
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_rows_of_the_classifier_are_averaged_over_the_devices_that_state_the_label(tmp_path):
    at = offered(tmp_path / "run", method="heterofl")
    before, first, second = at.given(), moved(at.given(), 1), moved(at.given(), 2)
    at.send("a", {name: first[name] for name in at.upload()}, labels="0,2,9")
    at.send("b", {name: second[name] for name in at.upload()}, labels="2,7")
    after = at.next().state().model.tensors
    for name in ("fc.weight", "fc.bias"):
        expected = before[name].copy()
        expected[[0, 9]], expected[7], expected[2] = first[name][[0, 9]], second[name][7], (first[name][2] + second[name][2]) / 2
        np.testing.assert_allclose(after[name].numpy(), expected, rtol=1e-5, atol=1e-6)
    for name in at.upload().keys() - {"fc.weight", "fc.bias"}:
        np.testing.assert_allclose(after[name].numpy(), (first[name] + second[name]) / 2, rtol=1e-5, atol=1e-6)
    at.send("c", {name: first[name] for name in at.upload()}, labels="3,10")
    with pytest.raises(
        WireError, match=re.escape("c.safetensors: labels: got '3,10', expected labels from 0 to 9, separated by")
    ):
        fed_round(at.bundle, at.inbox, tmp_path / "other")


# FedHM, OrigDrop and OrthDrop truncate: what comes back is their approximation. The others have every entry at a place of its own.
@pytest.mark.parametrize(
    ("method", "tiers"),
    [
        ("fedavg", (1.0,)), ("heterofl", (1.0, 0.5)), ("fjord", (1.0, 0.5)), ("fedpara", (0.5,)), ("lowrank", (0.5,)),
        ("prism", (1.0, 0.4)), ("splitmix", (1.0, 0.5)), ("fedper", (1.0,)),
        ("depthfl", (1.0, 0.5)), ("last-blocks", (1.0, 0.5)), ("last-blocks", (0.5,)),
    ],
)  # fmt: skip
def test_devices_that_change_nothing_leave_the_model_as_it_is(method, tiers, tmp_path):
    more = {"model": "cnn-tiny"} if method in ("depthfl", "last-blocks") else {}  # a perceptron has one block only
    at = offered(tmp_path / "run", method=method, tiers=tiers, **more)
    for tier in tiers:
        at.sends_back(f"of-{tier:g}", label=f"{tier:g}", samples=5)
    near(at.next().state(), {name: tensor.numpy() for name, tensor in at.state().model.tensors.items()})


@pytest.mark.parametrize("method", ["prism", "splitmix"])
def test_every_round_hands_out_another_part(method, tmp_path):
    """What a device changes is changed in the model, at the places that the draw of this very round gave it."""
    at = offered(tmp_path / "run", method=method, tiers=(0.25,))
    touched = []
    for _ in range(3):
        before = at.state().model.tensors
        at.sends_back("a", change=0.1, label="0.25")
        at = at.next()
        changes = {name: (tensor - before[name]).abs() > 1e-4 for name, tensor in at.state().model.tensors.items()}
        touched.append(torch.cat([change.flatten() for change in changes.values()]))
        assert touched[-1].any()
        assert not touched[-1].all()
    assert any(not torch.equal(touched[0], other) for other in touched[1:])


def test_a_server_optimizer_remembers_from_round_to_round(tmp_path):
    at = offered(tmp_path / "run", server_optimizer="avgm", server_lr=0.5)
    start = at.given()
    at.sends_back("a", change=1.0)
    at = at.next()
    near(at.state(), {name: tensor + 0.5 for name, tensor in start.items()})
    at.sends_back("a", change=1.0)  # m = 0.9 · 1 + 1
    near(at.next().state(), {name: tensor + 0.5 + 0.5 * 1.9 for name, tensor in start.items()})


def test_feddyn_subtracts_what_its_server_remembers(tmp_path):
    """h ← h − α/N·Σ(wₖ − w), and the weights are the mean less h/α: with N = 10 and two clients that moved by 1, w + 1 + 0.2."""
    at = offered(tmp_path / "run", objective="dyn", objective_strength=0.5)
    start = at.given()
    for client in "ab":
        at.sends_back(client, change=1.0)
    at = at.next()
    near(at.state(), {name: tensor + 1.2 for name, tensor in start.items()})
    at.sends_back("a", change=1.0)  # h = −0.1 − 0.05
    near(at.next().state(), {name: tensor + 2.2 + 0.3 for name, tensor in start.items()})


def test_scaffold_takes_control_variates_and_hands_out_its_own(tmp_path):
    at = offered(tmp_path / "run", objective="scaffold", optimizer="sgd", weight_decay=0.0)
    names = at.upload()
    assert all(not at.given()[f"control:{name}"].any() for name in names)
    tensors = {name: at.given()[name] for name in names}
    at.send("a", tensors)
    with pytest.raises(WireError, match=r"'control:.*': missing"):
        at.play()
    at.send("a", tensors | {f"control:{name}": np.full_like(tensors[name], 3.0) for name in names})
    at = at.next()
    near(at.state(), tensors)
    assert all(np.allclose(at.given()[f"control:{name}"], 0.3) for name in names)  # 3 / N


def test_a_method_in_phases_goes_on_to_the_next_one(tmp_path):
    """Pufferfish's network is dense for four rounds: after the fourth the bundle has its hybrid."""
    at = offered(tmp_path / "run", method="pufferfish", tiers=(0.25,), method_options={"warmup_rounds": 4})
    at.sends_back("a", label="0.25")
    after = at.next()
    assert after.upload("0.25").keys() != at.upload("0.25").keys()
    assert any(name.endswith(".u.weight") for name in after.upload("0.25"))
    after.sends_back("a", label="0.25")
    near(after.next().state(), {name: tensor.numpy() for name, tensor in after.state().model.tensors.items()})


def test_one_update_is_held_at_a_time(tmp_path, monkeypatch):
    at = offered(tmp_path / "run")
    for client in "abcd":
        at.sends_back(client)
    alive, most = [], []
    read_one = fedround.read_update

    def reading(path, expected):
        update = read_one(path, expected)
        most.append(sum(one() is not None for one in alive))
        alive.append(weakref.ref(next(iter(update.tensors.values()))))
        return update

    monkeypatch.setattr(fedround, "read_update", reading)
    at.play()
    assert len(alive) == 4
    assert max(most) <= 2  # the first, and the one before until the next is there


# What is refused.


def test_a_wrong_file_refuses_the_round_unless_it_may_be_left_out(tmp_path):
    at = offered(tmp_path / "run")
    at.sends_back("a", change=1.0)
    at.sends_back("b", change=9.0)
    (at.inbox / "b.safetensors").write_bytes(b"damaged")
    (at.inbox / "c.safetensors").write_bytes(b"damaged")
    with pytest.raises(WireError, match=r"b\.safetensors: a header of") as caught:
        at.play()
    assert "1 more files are wrong; --skip-bad leaves them out" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inbox of run", "run"]
    said = []
    result = at.play(skip_bad=True, notify=said.append)
    assert [line.split(": ")[0] for line in said] == ["left out"] * 2
    assert [Path(line.split(": ")[0]).name for line in result.refused] == ["b.safetensors", "c.safetensors"]
    near(Offered(result.folder).state(), {name: tensor + 1 for name, tensor in at.given().items()})


def test_with_keys_only_enrolled_devices_count(tmp_path):
    """One device and fifty copies of its update under invented names: the model moves as if there were no copies."""
    at = offered(tmp_path / "run")
    honest, stranger = (device_key(tmp_path, number) for number in (1, 2))
    enroll(tmp_path / "fleet.toml", [request(tmp_path, "phone", honest)])

    def sent(client: str, key, change: float) -> None:
        tensors = {name: at.given()[name] + np.float32(change) for name in at.upload()}
        path = at.send(client, tensors)
        header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
        path.write_bytes(signed_update(header["__metadata__"], tensors, key))

    sent("honest", honest, 1.0)
    for number in range(50):
        sent(f"sybil-{number}", stranger if number % 2 else honest, 9.0)
    with pytest.raises(WireError, match=r"sybil-0\.safetensors: key: phone sent honest\.safetensors already") as caught:
        at.play(keys=tmp_path / "fleet.toml")
    assert "49 more files are wrong; --skip-bad leaves them out" in str(caught.value)
    said = []
    result = at.play(keys=tmp_path / "fleet.toml", skip_bad=True, notify=said.append)
    assert len(said) == len(result.refused) == 50
    assert [dict(row) for row in result.devices] == [{"device": "phone", "key": honest.public, "tier": "1", "samples": 1}]
    assert json.loads((result.folder / "fed-round.json").read_text())["devices"] == [dict(result.devices[0])]
    near(of_file(result.folder / "model.safetensors"), {name: tensor + 1 for name, tensor in tensors_of(at).items()})
    revoke(tmp_path / "fleet.toml", "phone")
    with pytest.raises(WireError, match=r"honest\.safetensors: key: phone was revoked in "):
        fed_round(at.bundle, at.inbox, tmp_path / "revoked", keys=tmp_path / "fleet.toml")


def tensors_of(at: Offered) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in at.state().model.tensors.items()}


def test_without_keys_copies_count_and_are_remarked(tmp_path):
    at = offered(tmp_path / "run")
    at.sends_back("honest", change=1.0)
    for number in range(50):
        at.sends_back(f"sybil-{number}", change=9.0)
    said = []
    at.play(notify=said.append)
    assert said == [
        "without --keys every file counts: nothing shows that two clients are not one sender under two names",
        "50 of 51 updates have the same tensors, those of sybil-0.safetensors: one sender under several names?",
    ]


def test_keys_and_the_key_to_sign_with_are_read_before_anything_else(tmp_path):
    at = offered(tmp_path / "run")
    at.sends_back("a")
    for options, message in (
        ({"keys": tmp_path / "none.toml"}, r"none\.toml: no such file"),
        ({"sign": tmp_path / "none.pem"}, r"none\.pem: cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            at.play(**options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inbox of run", "run"]


def test_an_update_that_changes_meanwhile_ends_the_round(tmp_path, monkeypatch):
    at = offered(tmp_path / "run")
    at.sends_back("a", change=1.0)
    before = fedround._accepted

    def accepted(*given):
        found = before(*given)
        at.sends_back("a", change=9.0)
        return found

    monkeypatch.setattr(fedround, "_accepted", accepted)
    with pytest.raises(WireError, match=r"a\.safetensors: changed while the round was aggregated"):
        at.play()


def test_nothing_to_aggregate_is_an_error(tmp_path):
    at = offered(tmp_path / "run")
    with pytest.raises(WireError, match="no update to aggregate"):
        at.play()
    (at.inbox / "b").write_bytes(b"damaged")
    with pytest.raises(WireError, match="no update to aggregate"):
        at.play(skip_bad=True)


def test_huge_values_that_do_not_add_up_are_refused(tmp_path):
    at = offered(tmp_path / "run", server_lr=1e30)
    at.sends_back("a", change=9e14)
    with pytest.raises(WireError, match="do not add up to finite weights"):
        at.play()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inbox of run", "run"]


def test_bundle_and_run_must_belong_together(tmp_path):
    at = offered(tmp_path / "run")
    at.sends_back("a")
    other = offered(tmp_path / "other", seed=5)
    with pytest.raises(BundleError, match=r"state_sha256: got .*: the bundle is of another run or round"):
        at.play(run=other.run)
    at.bundle.rename(tmp_path / "moved")
    with pytest.raises(InputError, match="its parent folder is not a run; give the run"):
        fed_round(tmp_path / "moved", at.inbox, tmp_path / "out")
    assert fed_round(tmp_path / "moved", at.inbox, tmp_path / "out", run=at.run).round == 4
    with pytest.raises(CheckpointError, match="exists and is not an empty folder"):
        fed_round(tmp_path / "moved", at.inbox, tmp_path / "out", run=at.run)


def test_a_bundle_whose_weights_are_not_the_models_has_no_places(tmp_path):
    at = offered(tmp_path / "run")
    at.sends_back("a")
    tensors = {name: tensor + 1 for name, tensor in at.given().items()}
    content = safetensors.numpy.save(tensors)
    (at.bundle / "1" / "parameters").write_bytes(content)
    with pytest.raises(BundleError, match="its SHA-256 is not the manifest's"):
        at.play()
    files = json.loads((at.bundle / "manifest.json").read_text())["files"]
    changed(at.bundle, files={**files, "1/parameters": {"sha256": sha256(content), "bytes": len(content)}})
    with pytest.raises(BundleError, match="differs from what this computer makes of the run's model"):
        at.play()


def test_bundles_that_nobody_can_aggregate_are_refused_with_the_reason(tmp_path):
    at = offered(tmp_path / "run")
    tier = json.loads((at.bundle / "manifest.json").read_text())["tiers"][0]
    changed(at.bundle, tiers=[{**tier, "train": {**tier["train"], "no_update": "its server must know every client"}}])
    with pytest.raises(BundleError, match=r"updates of fedavg cannot be aggregated .*: its server must know every client"):
        at.play()
    changed(at.bundle, tiers=[{**tier, "train": None}])
    with pytest.raises(BundleError, match="exported for inference only"):
        at.play()
    changed(at.bundle, tiers=[tier], state_sha256=None)
    with pytest.raises(BundleError, match="does not say which model it was made from"):
        at.play()


def test_a_failure_while_writing_leaves_nothing(tmp_path, monkeypatch):
    at = offered(tmp_path / "run")
    at.sends_back("a")

    def fails(*_, **__):
        raise BundleError("no bundle today")

    monkeypatch.setattr("edgefl.run.device_round.build_bundle", fails)
    with pytest.raises(BundleError, match="no bundle today"):
        at.play()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inbox of run", "run"]
    assert math.isfinite(at.state().clock_s)


def test_the_command_shows_accuracies_and_ends_with_2_on_a_wrong_file(tmp_path, called):
    at = offered(tmp_path / "run")
    at.sends_back("a", samples=1200)
    (at.inbox / "b").write_bytes(b"damaged")
    asked = ["fed-round", str(at.bundle), "--updates", str(at.inbox), "--out", str(tmp_path / "next")]
    status, output, errors = called(*asked)
    assert (status, output) == (2, "")
    assert errors.startswith(f"Error: {at.inbox / 'b'}: ")
    assert not (tmp_path / "next").exists()
    status, output, errors = called(*asked, "--skip-bad")
    assert status == 0
    assert errors.startswith(f"left out: {at.inbox / 'b'}: ")
    assert re.search(r"\n +1 +1 +1,200 +[\d.]+ % +[\d.]+ % *\n", output)
    assert "after round 4, of 1 update, 1 left out" in output
    assert f"folder: {tmp_path / 'next'}" in output


def honest(at: Offered) -> None:
    """Four devices that move the head a little, so that the model stays as good as it is."""
    for number in range(4):
        at.send(f"honest-{number}", moved_a_little(at.given(), number), samples=100)


def moved_a_little(tensors: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (t + 1e-3 + 1e-4 * rng.standard_normal(t.shape)).astype(np.float32) for name, t in tensors.items()}


def test_one_claim_of_a_billion_samples_does_not_win(tmp_path):
    """It had a share of 0.9999996; capped at three times the median, it has 3 of 7 parts."""
    at = offered(tmp_path / "run")
    honest(at)
    before = at.given()
    at.send("greedy", {name: t + np.float32(1) for name, t in before.items()}, samples=10**9)
    result = at.play()
    after = of_file(result.folder / "model.safetensors").model.tensors
    for name, tensor in before.items():
        change = float((after[name] - torch.from_numpy(tensor)).mean())
        assert change == pytest.approx(3 / 7, abs=0.01)
    assert {row["client"]: row["counted_samples"] for row in result.updates if row["counted_samples"]} == {"greedy": 300}
    believed = fed_round(at.bundle, at.inbox, tmp_path / "believed", screening={"sample_cap": "off"}, keep_anyway=True)
    after = of_file(believed.folder / "model.safetensors").model.tensors
    assert all(float((after[name] - torch.from_numpy(t)).mean()) > 0.999 for name, t in before.items())


def test_a_model_that_gets_worse_is_not_written(tmp_path, monkeypatch, called):
    at = offered(tmp_path / "run")
    honest(at)
    at.send("hostile", {name: -10 * t for name, t in at.given().items()}, samples=100)
    scores = iter([{"global": 0.969, "1": 0.969}, {"global": 0.919, "1": 0.919}] * 3)
    monkeypatch.setattr(fedround, "accuracies", lambda trained: next(scores))
    asked = ["fed-round", str(at.bundle), "--updates", str(at.inbox), "--out", str(tmp_path / "next")]
    status, output, errors = called(*asked)
    assert (status, output) == (1, "")
    assert "accuracy 96.9 % before, 91.9 % after, more than --max-drop allows (3 points); nothing is written" in errors
    assert re.search(r"hostile\S*: change [\d,.e+]+ times the tier's median", errors)
    assert not re.search(r"honest-\d\S*: change", errors)
    assert not (tmp_path / "next").exists()
    status, output, _ = called(*asked, "--keep-anyway")
    assert status == 0
    assert "times the tier's median" in output
    assert called(*asked[:-1], str(tmp_path / "other"), "--max-drop", "0.06")[0] == 0


@pytest.mark.parametrize(
    "keys", [{"defence": "median"}, {"clip_norm": 0.2}, {"defence": "multi-krum"}, {"defence": "norm-filter"}]
)
def test_screening_holds_a_reversed_and_scaled_update(keys, tmp_path):
    """The change of one of five devices is eleven times the weights; without screening the model moves by a fifth of that."""
    at = offered(tmp_path / "run")
    honest(at)
    before = at.given()
    at.send("hostile", {name: -10 * t for name, t in before.items()}, samples=100)

    def distance(folder: str, **options) -> float:
        after = of_file(
            fed_round(at.bundle, at.inbox, tmp_path / folder, keep_anyway=True, **options).folder / "model.safetensors"
        )
        return math.sqrt(sum(float((after.model.tensors[n] - torch.from_numpy(t)).square().sum()) for n, t in before.items()))

    size = math.sqrt(sum(float(np.square(t).sum()) for t in before.values()))
    assert distance("open") == pytest.approx(11 / 5 * size, rel=0.02)
    assert distance("screened", screening=keys) < 0.02 * size


def test_keys_of_screening_are_checked(tmp_path):
    at = offered(tmp_path / "run")
    honest(at)
    with pytest.raises(InputError, match="screening: lr is no key of screening"):
        at.play(screening={"lr": 0.1})
    with pytest.raises(InputError, match="unknown defence 'krumm'; did you mean 'krum'"):
        at.play(screening={"defence": "krumm"})
