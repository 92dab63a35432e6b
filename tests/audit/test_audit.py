"""Audits of runs: canaries take the way of clients, through the run's own clipping and noise."""

import json
from dataclasses import replace

import numpy as np
import pytest
from audited import CENTRAL, EXAMPLE, LOCAL, made
from command import told

from edgefl.contrib.audit.audit import audit, with_noise
from edgefl.contrib.audit.canaries import Canaries
from edgefl.contrib.privacy.central import CentralNoise
from edgefl.run.finished import finished
from edgefl.server.chain import Chain

pytest.importorskip("dp_accounting")
Z = CENTRAL["noise_multiplier"]
UNSAMPLED = {**CENTRAL, "conditions": "fleet", "per_round": 6}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return runs by name, made when they are asked for first."""
    folder = tmp_path_factory.mktemp("audits")
    kinds = {
        "none": {"rounds": 1},
        "central": UNSAMPLED,
        "sampled": {**CENTRAL, "rounds": 1, "method": "fedavg", "tiers": (1.0,)},
        "averaged": {**UNSAMPLED, "method": "heterofl", "rounds": 1},
        "local": {**LOCAL, "rounds": 1},
        "example": {**EXAMPLE, "rounds": 1},
    }

    def run(name):
        return folder / name if (folder / name).exists() else made(folder / name, **kinds[name])

    return run


@pytest.mark.parametrize("name", ["central", "averaged", "local", "example"])
def test_the_estimate_agrees_with_what_is_accounted(runs, name):
    found = audit(runs(name), canaries=60)
    (leak,) = found.leaks
    summary = json.loads((runs(name) / "summary.json").read_text())
    assert leak.accounted == summary["privacy"]["epsilon"]
    assert 0 < leak.empirical < leak.accounted < leak.upper
    assert not found.exceeds


def test_sampling_is_counted_for_an_attacker_who_does_not_know_who_takes_part(runs):
    knows, guesses = audit(runs("sampled"), canaries=60).leaks
    assert guesses.accounted == json.loads((runs("sampled") / "summary.json").read_text())["privacy"]["epsilon"]
    assert guesses.accounted < knows.accounted
    assert guesses.most_likely < knows.most_likely
    assert guesses.empirical < guesses.accounted < guesses.upper


def test_a_run_whose_noise_is_too_small_leaks_more_than_is_accounted(runs):
    with finished(runs("central")) as trained:
        chain = Chain(tuple(_quieter(stage) for stage in trained.run.chain.stages))
        trained.run.__dict__["chain"] = chain
        found = with_noise(trained, Canaries(60, seed=1))
    assert found.exceeds
    assert found.leaks[0].most_likely > 3 * found.leaks[0].accounted


def _quieter(stage):
    return replace(stage, central=replace(stage.central, noise_multiplier=Z / 6)) if isinstance(stage, CentralNoise) else stage


def test_a_run_whose_clipping_is_missing_leaks_more_than_is_accounted(runs, monkeypatch):
    monkeypatch.setattr("edgefl.contrib.privacy.noised.clipped", lambda update, sent, bound: (update, 0.0))
    found = audit(runs("local"), canaries=100)
    assert found.leaks[0].most_likely > 1.5 * found.leaks[0].accounted


def test_canaries_are_the_same_in_every_call_and_have_the_length_1():
    shapes = {"w": (30, 20), "b": (7,)}
    one, two = (Canaries(5, seed=3).direction(2, shapes) for _ in range(2))
    assert all(one[name].equal(two[name]) for name in shapes)
    assert sum(float(part.square().sum()) for part in one.values()) == pytest.approx(1)
    assert not one["w"].equal(Canaries(5, seed=3).direction(1, shapes)["w"])
    assert {Canaries(5, seed=3).sign(j) for j in range(20)} == {-1, 1}


def test_the_command_prints_both_values_of_epsilon(runs):
    status, output, _ = told("audit", runs("local"), "--canaries", 60)
    assert status == 0
    assert "empirical ε (at least)" in output
    assert "60 canaries, privacy local: no more is leaked than is accounted" in output
    (leak,) = json.loads(told("audit", runs("local"), "--canaries", 60, "--json")[1])["leaks"]
    assert leak["releases"] == 1
    assert (
        f"the run leaks at least ε = {leak['empirical']:.4g} (99 % interval up to {leak['upper']:.4g}; "
        f"most likely {leak['most_likely']:.4g}; accounted {leak['accounted']:.4g})" in output
    )


def test_a_most_likely_value_above_the_accounted_one_is_no_contradiction(runs, monkeypatch):
    monkeypatch.setattr("edgefl.contrib.audit.audit.local", lambda run, *_: 0.6 + np.random.default_rng(0).standard_normal(60))
    (leak,) = audit(runs("local"), canaries=60).leaks
    assert leak.empirical < leak.accounted < leak.most_likely
    status, output, _ = told("audit", runs("local"), "--canaries", 60)
    assert status == 0
    assert f"at least ε = {leak.empirical:.4g}" in output
    assert "no more is leaked than is accounted" in output


def test_the_command_fails_if_more_is_leaked_than_is_accounted(runs, monkeypatch):
    monkeypatch.setattr("edgefl.contrib.audit.audit.local", lambda run, *_: 100 + np.random.default_rng(0).standard_normal(60))
    status, output, _ = told("audit", runs("local"))
    assert status == 1
    assert "more is leaked than is accounted: the run's noise or clipping is not what it should be" in output


def test_without_privacy_it_prints_what_a_membership_attack_reaches(runs):
    status, output, _ = told("audit", runs("none"))
    assert status == 0
    assert "no privacy: a membership attack on the final model" in output
    assert "right; 50 % by chance" in output
    found = json.loads(told("audit", runs("none"), "--json")[1])
    assert found["level"] == "none"
    assert 0 <= found["membership"]["auc"] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}/none-such"], "none-such: holds no summary.json: there is no such folder"),
        (["{tmp}"], "not a run folder, or a run that is not complete"),
        (["{tmp}", "--canaries", "5"], "canaries must be at least 20, got 5"),
        ([], "Missing argument 'RUN'"),
    ],
)
def test_wrong_use_is_refused(tmp_path, arguments, message):
    status, _, errors = told("audit", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert status == 2
    assert message in errors
    assert "Traceback" not in errors


def test_a_round_of_real_devices_is_refused(tmp_path):
    (tmp_path / "fed-round.json").write_text("{}")
    status, _, errors = told("audit", tmp_path)
    assert status == 2
    assert "the result of fed-round, whose samples are on devices; give a simulated run" in errors


def test_its_help_says_what_it_measures():
    status, output, _ = told("audit", "--help")
    assert status == 0
    assert "empirical" in output
    assert "membership" in output
