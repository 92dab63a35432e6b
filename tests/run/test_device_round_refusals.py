"""Update files, bundles and runs that refuse a round: one message, and nothing written."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import safetensors.numpy
import safetensors.torch
from device_rounds import Offered, near, offered
from handmade import changed

from edgefl.errors import BundleError, CheckpointError, ConfigError, InputError, WireError
from edgefl.run import device_round as fedround
from edgefl.run.device_round import fed_round
from edgefl.run.feature import no_updates
from edgefl.run.folder import RunFolder, resumed_config
from edgefl.util.files import sha256
from edgefl.util.keys import SigningKey

pytestmark = pytest.mark.usefixtures("bundles_without_graphs")


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
    with pytest.raises(InputError, match=r"its parent folder is not a run, and there is no .*-run; give the run"):
        fed_round(tmp_path / "moved", at.inbox, tmp_path / "out")
    assert fed_round(tmp_path / "moved", at.inbox, tmp_path / "out", run=at.run).round == 4
    with pytest.raises(CheckpointError, match="exists and is not an empty folder"):
        fed_round(tmp_path / "moved", at.inbox, tmp_path / "out", run=at.run)


@pytest.mark.parametrize(("key", "value"), [("round", 7), ("method", "heterofl"), ("classes", 9)])
def test_a_manifest_that_was_edited_is_refused(tmp_path, key, value):
    at = offered(tmp_path / "run")
    more = {"class_names": [str(n) for n in range(9)]} if key == "classes" else {}
    changed(at.bundle, **{key: value}, **more)
    at.sends_back("a")
    with pytest.raises(BundleError, match=rf"manifest\.json: {key}: got {value}, the run has .*; export the bundle again"):
        at.play()


def test_a_bundle_whose_signature_is_wrong_is_refused(tmp_path):
    at = offered(tmp_path / "run")
    at.sends_back("a")
    (at.bundle / "manifest.sig").write_bytes(bytes(64))
    (at.bundle / "manifest.pub").write_bytes(SigningKey.new(tmp_path / "key.pem").public.pem)
    with pytest.raises(BundleError, match=r"manifest\.sig: not the signature of this manifest\.json"):
        at.play()


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
    # The reason comes before what a bundle of no run lacks too.
    changed(at.bundle, tiers=[{**tier, "train": {**tier["train"], "no_update": "it is of no run"}}], state_sha256=None)
    with pytest.raises(BundleError, match="it is of no run"):
        at.play()
    changed(at.bundle, tiers=[{**tier, "train": None}])
    with pytest.raises(BundleError, match="exported for inference only"):
        at.play()
    changed(at.bundle, tiers=[tier], state_sha256=None)
    with pytest.raises(BundleError, match="does not say which model it was made from"):
        at.play()


def test_a_run_with_secure_sums_is_refused_as_update_files_have_no_masks(tmp_path):
    at = offered(tmp_path / "run", secure_aggregation="secagg:least=2")
    at.sends_back("a", 0.1)
    with pytest.raises(
        ConfigError, match=r"secure_aggregation: secagg:least=2 is simulated only: .*; start a new run without it"
    ):
        at.play()
    assert no_updates(RunFolder(at.run).config()) == (
        "the run has secure_aggregation secagg:least=2, and update files have no masks"
    )


def test_what_a_round_wrote_is_not_resumed_as_a_simulation(tmp_path):
    at = offered(tmp_path / "run")
    at.sends_back("a", 0.1)
    after = at.play().folder
    with pytest.raises(
        CheckpointError, match="the result of fed-round, which has no simulated rounds to continue; start a new run"
    ):
        RunFolder(after).check(resumed_config(after, {}), resume=True)


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
