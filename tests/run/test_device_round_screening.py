"""Whose updates count in a round, and how much: keys of devices, claims of samples, and screening."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict

import numpy as np
import pytest
import safetensors.numpy
import torch
from device_rounds import AVERAGED, Offered, near, offered
from signing import device_key, request, signed_update

from edgefl.errors import EdgeflError, InputError, WireError
from edgefl.run import device_round as fedround
from edgefl.run.device_round import fed_round
from edgefl.run.enroll import enroll, revoke
from edgefl.run.folder import RunFolder
from edgefl.run.guarded import guarded
from edgefl.server.checkpoint import of_file

pytestmark = pytest.mark.usefixtures("bundles_without_graphs")


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
    assert [asdict(row) for row in result.devices] == [{"device": "phone", "key": honest.public, "tier": "1", "samples": 1}]
    assert json.loads((result.folder / "fed-round.json").read_text())["devices"] == [asdict(result.devices[0])]
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
        "without --keys every file counts, even if one sender wrote several under different names",
        "50 of 51 updates have the same tensors, those of sybil-0.safetensors: one sender under several names?",
    ]


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
    assert {row.client: row.counted_samples for row in result.updates if row.counted_samples} == {"greedy": 300}
    believed = fed_round(
        at.bundle, at.inbox, tmp_path / "believed", screening={"sample_cap": "off", **AVERAGED}, keep_anyway=True
    )
    after = of_file(believed.folder / "model.safetensors").model.tensors
    assert all(float((after[name] - torch.from_numpy(t)).mean()) > 0.999 for name, t in before.items())


def test_a_model_that_gets_worse_is_not_written(tmp_path, monkeypatch, called):
    at = offered(tmp_path / "run")
    honest(at)
    at.send("hostile", {name: -10 * t for name, t in at.given().items()}, samples=100)
    scores = iter([{"global": 0.969, "1": 0.969}, {"global": 0.919, "1": 0.919}] * 3)
    monkeypatch.setattr(fedround, "accuracies", lambda trained: next(scores))
    asked = ["fed-round", str(at.bundle), "--updates", str(at.inbox), "--defence", "none", "--out", str(tmp_path / "next")]
    status, output, errors = called(*asked)
    assert (status, output) == (1, "")
    assert "accuracy 96.9 % at best, 91.9 % after, more than --max-drop allows (3 points); nothing is written" in errors
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
    assert distance("open", screening=AVERAGED) == pytest.approx(11 / 5 * size, rel=0.02)
    assert distance("screened", screening=keys) < 0.02 * size


def test_a_far_too_large_update_is_left_out_by_default_and_named(tmp_path, called):
    """One of five devices sends its update reversed, times ten: averaged it would move the model by as much as two honest rounds."""
    at = offered(tmp_path / "run")
    honest(at)
    before = at.given()
    at.send("hostile", {name: (t - 10 * (moved_a_little(before, 9)[name] - t)) for name, t in before.items()}, samples=100)
    status, output, errors = called("fed-round", str(at.bundle), "--updates", str(at.inbox), "--out", str(tmp_path / "next"))
    assert status == 0, errors
    assert re.search(
        r"^left out by the defence: hostile\.safetensors \(change \d[\d.]* times the tier's median", output, re.MULTILINE
    )
    assert "left out by the defence: honest" not in output
    after = of_file(tmp_path / "next" / "model.safetensors").model.tensors
    assert all(float((after[name] - torch.from_numpy(t)).mean()) == pytest.approx(1e-3, rel=0.1) for name, t in before.items())
    near(of_file(at.play().folder / "model.safetensors"), mean_of(at))


def mean_of(at: Offered) -> dict[str, np.ndarray]:
    sent = [safetensors.numpy.load(path.read_bytes()) for path in sorted(at.inbox.iterdir())]
    return {name: np.mean([tensors[name] for tensors in sent], axis=0) for name in sent[0]}


def test_a_method_that_cannot_have_the_default_defence_says_so(tmp_path):
    at = offered(tmp_path / "run", objective="scaffold", optimizer="sgd", weight_decay=0.0)
    config, why = guarded(RunFolder(at.run).config(), ())
    assert (config.defence, "adds up more on the server than defence screens" in why) == ("none", True)
    assert guarded(config, ["defence"]) == (config, "")
    plain = config.model_copy(update={"objective": "none"})
    assert guarded(plain, ())[0].defence == "norm-filter"
    assert guarded(plain.model_copy(update={"defence": "median"}), ())[0].defence == "median"


def test_a_slow_fall_is_compared_with_the_best_model_so_far(tmp_path, monkeypatch):
    """A point less in every round: each passes beside the one before, and the fourth is more than three points below the best."""
    scores: list[float] = []
    monkeypatch.setattr(fedround, "accuracies", lambda trained: dict.fromkeys(("global", "1"), scores.pop(0)))
    at = offered(tmp_path / "run")
    for number, (before, after) in enumerate(((0.95, 0.94), (0.94, 0.93), (0.93, 0.92))):
        scores[:] = [before, after]
        honest(at)
        at = Offered(fed_round(at.bundle, at.inbox, tmp_path / f"next-{number}").folder)
    assert json.loads((at.run / "fed-round.json").read_text())["best"] == {"global": 0.95, "1": 0.95}
    honest(at)
    scores[:] = [0.92, 0.91]
    with pytest.raises(EdgeflError, match=r"accuracy 95 % at best, 91 % after, more than --max-drop allows \(3 points\)"):
        fed_round(at.bundle, at.inbox, tmp_path / "last")
    scores[:] = [0.92, 0.91]
    kept = Offered(fed_round(at.bundle, at.inbox, tmp_path / "kept", keep_anyway=True).folder)
    assert json.loads((kept.run / "fed-round.json").read_text())["best"] == {"global": 0.91, "1": 0.91}


def test_an_edited_best_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fedround, "accuracies", lambda trained: {"global": 0.5, "1": 0.5})
    at = offered(tmp_path / "run")
    honest(at)
    at = at.next()
    path = at.run / "fed-round.json"
    path.write_text(path.read_text().replace('"global": 0.5', '"global": 0.1'))
    honest(at)
    with pytest.raises(InputError, match=r"fed-round\.json: edited or damaged after the run wrote it"):
        at.play()


def test_keys_of_screening_are_checked(tmp_path):
    at = offered(tmp_path / "run")
    honest(at)
    with pytest.raises(InputError, match="screening: lr is no key of screening"):
        at.play(screening={"lr": 0.1})
    with pytest.raises(InputError, match="unknown defence 'krumm'; did you mean 'krum'"):
        at.play(screening={"defence": "krumm"})
