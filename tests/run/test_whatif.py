"""Which runs may judge the policies of a what-if."""

import os
import re
import shutil
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_records import rounds_in
from made_whatif import whatif_with
from small_fleet import write_device, write_fleet

from edgefl import RunConfig
from edgefl.errors import ConfigError, InputError
from edgefl.report.required import Goal
from edgefl.report.retimed import TimedRound
from edgefl.report.whatif_page import fastest
from edgefl.run import forks, policy_clock
from edgefl.run import whatif as whatif_module
from edgefl.run.folder import RunFolder
from edgefl.run.policy_clock import Simulated, policy_draws
from edgefl.run.prepare import prepare
from edgefl.run.whatif import WhatIf, _check_same, whatif

KEYS = {"method": "fedavg", "model": "mlp", "tiers": (1.0,), "clients": 6, "rounds": 2, "local_epochs": 1}


def run_of(path, **keys) -> RunFolder:
    """Return the folder of a run, with its configuration alone."""
    folder = RunFolder(path)
    folder.start(prepare(RunConfig(**KEYS | keys)).config)
    return folder


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"local_epochs": None}, "its local epochs is 1, that of the policies 5; give the same"),
        ({"lr": 10}, "its lr is 0.05, that of the policies 10.0; give the same"),
        ({"optimizer": "adam"}, "its optimizer is momentum, that of the policies adam"),
        ({"objective": "prox"}, "its objective is none, that of the policies prox"),
        ({"codec": "int8"}, "its codec is fp32, that of the policies int8"),
        ({"data_share": 0.9}, "its data share is 1.0, that of the policies 0.9"),
        ({"adversary": "sign-flip:0.4(scale=10)"}, r"its adversary is none, that of the policies sign-flip:0.4\(scale=10\)"),
        ({"mode": "async"}, "its mode is sync, that of the policies async"),
    ],
)
def test_a_run_of_another_setting_is_refused(keys, message, tmp_path):
    with pytest.raises(InputError, match=message):
        _check_same(run_of(tmp_path / "run"), prepare(RunConfig(**KEYS | keys)).config)


def test_policies_may_differ(tmp_path):
    varied = {
        "deadline_s": 3.0,
        "tiers": (0.5,),
        "rounds": 5,
        "per_round": 2,
        "availability": "daily",
        "seed": 1,
        "profile": "mixed",
    }
    _check_same(run_of(tmp_path / "run"), prepare(RunConfig(**KEYS | varied)).config)


def test_a_rate_that_follows_the_rounds_wants_the_same_number(tmp_path):
    keys = KEYS | {"lr_schedule": "cosine"}
    with pytest.raises(InputError, match="its rounds is 2, that of the policies 3"):
        _check_same(run_of(tmp_path / "run", **keys), prepare(RunConfig(**keys | {"rounds": 3})).config)


def test_own_data_are_known_by_their_content(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    own, moved = tmp_path / "own.npz", tmp_path / "moved" / "own.npz"
    np.savez(own, x=x, y=np.arange(60) % 2)
    folder = run_of(tmp_path / "run", dataset=str(own))
    _check_same(folder, prepare(RunConfig(**KEYS | {"dataset": str(own)})).config)
    moved.parent.mkdir()
    shutil.copyfile(own, moved)
    _check_same(folder, prepare(RunConfig(**KEYS | {"dataset": str(moved)})).config)
    np.savez(own, x=x + 1, y=np.arange(60) % 2)
    with pytest.raises(InputError, match="run: its data has changed since it trained"):
        _check_same(folder, prepare(RunConfig(**KEYS | {"dataset": str(own)})).config)


def test_the_page_of_commands_names_keys_of_the_result():
    lines = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith("| `whatif`"))
    assert set(re.findall(r"`(\w+)`", row.split("|")[2])) == {"rows"} <= {field.name for field in fields(WhatIf)}


def rounds_of(train_s: float, clients: int, deadline_s: float | None) -> Simulated:
    """Three rounds of boards that all answer in time."""
    client = {"device": "board", "status": "trained", "train_s": train_s, "total_s": train_s}
    lines = [{"clients": [client] * clients, "clock_s": train_s * number, "deadline_s": deadline_s} for number in (1, 2, 3)]
    return Simulated([TimedRound.of(line) for line in rounds_in(lines)], clients)


def test_the_fastest_policy_is_sought_again_with_clocks_that_are_wrong():
    """The short deadline has twice the updates, unless boards take more than 1.05 times as long; then it has none."""
    rows = [SimpleNamespace(label=label, inclusion=1.0) for label in ("short", "long")]
    policies = [rounds_of(1.0, 2, 1.05), rounds_of(1.0, 1, None)]

    def drawn(error):
        device = SimpleNamespace(name="board", title="Board", clock_error=error)
        return policy_draws(rows, policies, SimpleNamespace(classes=[SimpleNamespace(device=device)]))

    exact, wrong = drawn(1.0), drawn(3.0)
    assert (exact.first, exact.decides) == ({"short": 1.0}, None)
    # Φ(ln 1.05 / (ln 3 / 1.645)) = .53
    assert wrong.first["short"] == pytest.approx(0.53, abs=0.08)
    assert (wrong.first["short"] + wrong.first["long"], wrong.decides) == (1, "board")
    result = whatif_with([], clock=wrong)
    assert fastest(result).endswith("of 200 draws: measure Board, off by up to 3 times.")
    assert "“short” is fastest in" in fastest(result)
    assert policy_draws(rows[:1], policies[:1], SimpleNamespace(classes=[])) is None
    assert policy_draws(rows, [policies[0], Simulated((), 1)], SimpleNamespace(classes=[])) is None


def test_a_class_that_no_policy_includes_has_its_need_in_seconds_of_session_and_link(tmp_path):
    """The meter's link takes hours: no policy includes it, and deadlines decide. With none, its late answers are not awaited."""
    write_device(tmp_path, "meter", download_mbps=1e-4, upload_mbps=1e-4)
    write_device(tmp_path, "board")
    fleet = write_fleet(tmp_path, {"board": 0.5, "meter": 0.5}, behaviour={})
    keys = {"profile": str(fleet), "model": "mlp", "clients": 20, "per_round": 4, "rounds": 2, "conditions": "ideal"}
    found = whatif(RunConfig(**keys), deadlines_s=(60, 600))
    (need,) = found.needs.values()
    (device,) = found.needs
    assert (device, need.tier, need.short) == ("meter", 0.25, "")
    assert need.session_s > need.link_s > 3600
    assert [row.ended_by_deadline for row in found.rows] == [2, 2]
    assert found.rows[0].update_bytes > 0
    assert found.fleet_title == "Small"


def test_what_is_required_of_a_month_or_a_class_is_checked_against_the_fleet(tmp_path):
    write_device(tmp_path, "board")
    fleet = write_fleet(tmp_path, {"board": 1.0}, behaviour={})
    config = RunConfig(profile=str(fleet), model="mlp", clients=20, per_round=20, rounds=2, conditions="ideal")
    goal = Goal(("bytes <= 1TB/month",), "joules")
    with pytest.raises(InputError, match="a month needs to know when rounds begin"):
        whatif(config, goal=goal)
    daily = config.model_copy(update={"rounds_per_day": 12.0})
    assert whatif(daily, tiers=((1.0,),), goal=goal).required.taken == "tiers 1"
    with pytest.raises(InputError, match=r"nor a class of the fleet \(board\)"):
        whatif(config, goal=Goal(("board <= 10 %", "watch <= 10 %")))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_policies_on_all_cores_have_the_bits_of_one_after_the_other(mode, monkeypatch):
    keys = {"method": "heterofl", "profile": "mixed", "clients": 500, "per_round": 20, "rounds": 12, "model": "mlp", "mode": mode}
    config = RunConfig(**keys, partition="index:60")
    asked = []
    how = {"deadlines_s": () if mode == "async" else (1, 5), "over_selections": (1.0, 1.4), "on_policy": asked.append}
    if mode == "async":
        how |= {"over_selections": (), "tiers": ((1.0, 0.5), (0.5,))}
    alone = whatif(config, **how)
    monkeypatch.setattr(forks, "usable_threads", lambda: 2)
    for module in (whatif_module, policy_clock):
        monkeypatch.setattr(module, "MANY_SESSIONS", 0)
    own, simulated = os.getpid(), whatif_module._simulated

    def elsewhere(*of: Any) -> Any:
        assert os.getpid() != own
        return simulated(*of)

    monkeypatch.setattr(whatif_module, "_simulated", elsewhere)
    assert whatif(config, **how).to_dict() == alone.to_dict()
    assert len(asked) == 2 * len(alone.rows)


def test_any_other_key_is_an_axis(tmp_path):
    """Two places of a round for one slow meter among nine boards: meters train in every round, and hold it up."""
    write_device(tmp_path, "meter", training_gmacs=0.01)
    write_device(tmp_path, "board")
    fleet = write_fleet(tmp_path, {"board": 0.9, "meter": 0.1}, behaviour={})
    config = RunConfig(profile=str(fleet), model="mlp", method="fedavg", clients=40, per_round=6, rounds=6, conditions="ideal")
    samplers = "uniform", "reserved(slots='meter:2')"
    found = whatif(config, over_selections=(1.0,), vary={"sampler": samplers, "per_round": (4, 6)})
    assert [row.label for row in found.rows] == [
        f"sampler {sampler} · per round {count}" for sampler in samplers for count in (4, 6)
    ]
    sessions = [{device: use.sessions for device, use in row.uses.items()} for row in found.rows]
    assert [sum(of.values()) for of in sessions] == [24, 36, 24, 36]
    anyone, reserved = sessions[:2], sessions[2:]
    assert max(of.get("meter", 0) for of in anyone) < 12 <= min(of["meter"] for of in reserved)
    assert found.method == "fedavg"


def test_methods_are_an_axis_and_each_is_checked():
    config = RunConfig(model="mlp", rounds=1, clients=4, method_options={})
    found = whatif(config, vary={"method": ("fedavg", "heterofl")})
    assert (found.method, [row.label for row in found.rows]) == ("fedavg, heterofl", ["method fedavg", "method heterofl"])
    with pytest.raises(ConfigError, match="policy “sampler reserved.*”: sampler: reserved: no class of the fleet is 'watch'"):
        whatif(config, vary={"sampler": ("uniform", "reserved(slots='watch:1')")})


@pytest.mark.parametrize(
    ("varied", "told"),
    [
        ("rounds=5,10", "vary: rounds is the same for all policies; vary another key"),
        ("deadline_s=5,10", "vary: deadline_s has a list of its own"),
        ("codec=int8,int8", "vary: codec: int8 comes twice"),
        ("codec=mp3", "codec"),
        ("colour=red", "colour: unknown key"),
        ("watch.largest_tier=0,1", "watch.largest_tier: no class of the fleet is 'watch'; its classes are"),
        ("per_round=", "'per_round=' is not of the form KEY=V1,V2, such as per_round=50,100"),
        ("per_round=0,5", "per_round"),
    ],
)
def test_an_axis_that_is_wrong_is_one_message(varied, told, called):
    status, output, errors = called("whatif", "--vary", varied)
    assert (status, output) == (2, "")
    assert told in errors


def test_a_policy_knows_the_largest_tier_that_it_trains():
    """Of a fleet of phones, nobody trains the whole network in three tenths of a second (runs of it are in tools/surrogate.py)."""
    config = RunConfig(profile="phone", method="heterofl", rounds=4, local_epochs=2)
    found = whatif(config, deadlines_s=(0.05, 0.3, 5.0)).rows
    assert [row.largest_trained for row in found] == [None, 0.5, 1.0]
    assert [row.updates > 0 for row in found] == [False, True, True]
