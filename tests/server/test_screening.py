"""Screening in whole rounds: attacks of the kind that ruined a model, bounds that resume to the same bits, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import checkpoint_of, lines_of, stopped_after

from edgefl import RunConfig
from edgefl.client.stage import Turn
from edgefl.client.stages.clip import Clip
from edgefl.client.stages.coded import PLAIN
from edgefl.errors import ConfigError
from edgefl.records import Tier, Update
from edgefl.run.prepare import prepare
from edgefl.run.resolved import chain_of
from edgefl.server.chain import Chain
from edgefl.server.checkpoint import of_file
from edgefl.server.defence import defence_named
from edgefl.server.stages import Capped, Compared, Defended

SMALL: dict[str, Any] = {
    "dataset": "digits", "model": "mlp", "method": "heterofl", "tiers": (1.0, 0.5), "tier_assignment": "uniform", "profile": "laptop",
    "clients": 10, "per_round": 10, "rounds": 3, "local_epochs": 2, "partition": "iid", "conditions": "ideal", "eval_samples": 200,
}  # fmt: skip
SENT = {"w": torch.tensor([1.0, -2.0])}


def update(client: int, change: list[float], samples: int = 10, tier: float = 1.0) -> Update:
    return Update(client, Tier(tier), {"w": SENT["w"] + torch.tensor(change)}, {}, samples, start=SENT)


def turn_of(memory: dict[str, torch.Tensor]) -> Turn:
    """Return a round of a server that remembers ``memory``, for stages that ask for nothing else."""
    nothing: Any = None
    return Turn(nothing, nothing, memory, 1, 0, 3, (), nothing, nothing, nothing)


def played(folder: Path, **keys: Any) -> tuple[float, list[dict[str, Any]]]:
    """Return the accuracy after the last round, and the rounds."""
    lines = lines_of(stopped_after(RunConfig.of({**SMALL, **keys}), folder, 3))
    return lines[-1]["accuracy"]["global"], lines


def test_a_reversed_and_scaled_change_ruins_the_model_unless_it_is_screened(tmp_path):
    attack = "sign-flip:0.1(scale=10)"
    honest, _ = played(tmp_path / "honest")
    attacked, _ = played(tmp_path / "attacked", adversary=attack)
    assert honest > 0.6
    assert attacked < honest - 0.25
    for name in ("median", "trimmed-mean", "multi-krum", "norm-filter"):
        held, lines = played(tmp_path / name, adversary=attack, defence=name)
        assert held > honest - 0.1, f"{name}: {held:.3f}, without the attack {honest:.3f}"
        if name in ("multi-krum", "norm-filter"):
            (hostile,) = lines[0]["adversaries"]
            assert next(c for c in lines[0]["clients"] if c["client"] == hostile)["screened"]["dropped"]


def test_inflated_samples_win_unless_they_are_capped(tmp_path):
    """The update of a client that claims a thousand times its samples, and sends the opposite of its change."""
    own = {"method": "fedavg", "tiers": (1.0,), "adversary": "inflated:0.1(times=1000, flip=True)"}
    honest, _ = played(tmp_path / "honest", **{**own, "adversary": None})
    believed, _ = played(tmp_path / "believed", **own, sample_cap="off")
    capped, lines = played(tmp_path / "capped", **own)
    assert believed < honest - 0.25
    assert capped > honest - 0.1
    (hostile,) = lines[0]["adversaries"]
    counted = {c["client"]: c["screened"]["counted_samples"] for c in lines[0]["clients"] if c.get("screened")}
    median = sorted(c["samples"] for c in lines[0]["clients"])[4]
    assert counted[hostile] == 3 * median


@pytest.mark.parametrize("keys", [{}, {"method": "fedhm", "defence": "median"}], ids=["added up by workers", "held"])
def test_workers_and_resumed_runs_clip_to_the_same_bits(keys, tmp_path):
    config = RunConfig.of({**SMALL, **keys, "rounds": 4, "clip_norm": "adaptive", "clip_start": 0.5})
    whole = stopped_after(config, tmp_path / "whole", 3)
    pool = stopped_after(config.model_copy(update={"engine": "pool", "workers": 2}), tmp_path / "pool", 3)
    part = stopped_after(config, tmp_path / "part", 1)
    stopped_after(config, part, 3, resume=True)
    assert lines_of(pool) == lines_of(whole) == lines_of(part)
    names = {checkpoint_of(folder, 2).name for folder in (whole, pool, part)}  # a name has the hash of all tensors
    assert len(names) == 1
    memory = of_file(checkpoint_of(whole, 2)).memory
    assert {name for name in memory if name.startswith("clip_norm:")} == {"clip_norm:1", "clip_norm:0.5"}
    assert lines_of(whole)[2]["observed"]["clip_norm"] == {label: float(memory[f"clip_norm:{label}"]) for label in ("0.5", "1")}


def test_an_asynchronous_server_clips_what_arrives(tmp_path):
    _, lines = played(tmp_path / "run", mode="async", buffer=4, clip_norm=0.05, outliers=True)
    found = [client["screened"] for line in lines for client in line["clients"] if client.get("screened")]
    assert len(found) == 12
    assert all(of["clipped"] and of["change_norm"] > 0.05 for of in found)


def test_a_default_run_has_no_figures_of_screening(tmp_path):
    _, lines = played(tmp_path / "run")
    assert not any("screened" in client for line in lines for client in line["clients"])
    assert not any("screening" in line.get("observed", {}) for line in lines)


def test_what_was_found_in_each_update():
    chain, turn = Chain.of((PLAIN, Capped(20), Clip(5.0), Compared())), turn_of({})
    admitted = [chain.admit(update(client, change, samples), turn) for client, change, samples in [
        (1, [3.0, 0.0], 10), (2, [0.0, -4.0], 10**9), (3, [-60.0, 80.0], 20),
    ]]  # fmt: skip
    assert [of.samples for of in admitted] == [10, 20, 20]
    assert (admitted[2].tensors["w"] - SENT["w"]).tolist() == [-3.0, 4.0]
    observed, found = chain.record(turn), turn.found
    assert [found[n].change_norm for n in (1, 2, 3)] == [3.0, 4.0, 100.0]
    assert [found[n].norm_ratio for n in (1, 2, 3)] == [0.75, 1.0, 25.0]
    assert [found[n].clipped for n in (1, 2, 3)] == [False, False, True]
    assert [found[n].counted_samples for n in (1, 2, 3)] == [None, 20, None]
    # The median of the changes (3, 0), (0, −4), (−60, 80) is (0, 0): it has no direction.
    assert [found[n].cosine for n in (1, 2, 3)] == [None] * 3
    assert observed == {"clip_norm": {"1": 5.0}, "screening": {"clipped": 1, "dropped": 0, "capped": 1}}


def test_bounds_of_tiers_adapt_apart():
    """γ = ½ and η = 0.2: no change within the bound raises it by e^0.1, all of them lower it by as much."""
    chain, turn = Chain.of((PLAIN, Clip(start=2.0))), turn_of({"clip_norm:0.5": torch.tensor(50.0, dtype=torch.float64)})
    for client, (change, tier) in enumerate([([3.0, 4.0], 1.0), ([0.0, 6.0], 1.0), ([30.0, 0.0], 0.5)]):
        chain.admit(update(client, change, tier=tier), turn)
    chain.record(turn)
    after = {name: float(bound) for name, bound in turn.after.items()}
    assert after == pytest.approx({"clip_norm:1": 2 * 1.1051709180756477, "clip_norm:0.5": 50 * 0.9048374180359595}, rel=1e-14)


@pytest.mark.parametrize(
    ("claims", "cap", "expected"),
    [([10, 12, 10**9], "auto", 36), ([10**9, 7], "auto", 21), ([], "auto", None), ([5, 10**9], 40, 40)],
)
def test_the_cap_follows_the_median_of_claims(claims, cap, expected):
    assert Capped(cap).cap(claims) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"method": "prism", "defence": "median"},
            "defence: median makes no sense with PriSM: every client draws kernels of its own",
        ),
        ({"method": "fedfomo", "defence": "krum"}, "defence: krum makes no sense with FedFOMO: "),
        ({"method": "standalone", "clip_norm": 1.0}, "clip_norm: makes no sense with "),
        ({"defence": "median", "mode": "async"}, "mode: median compares changes of one model, and async has no rounds"),
        ({"defence": "median", "objective": "dyn"}, "objective: dyn adds up more on the server than defence screens"),
        ({"clip_norm": 1.0, "objective": "dyn"}, "objective: dyn adds up more on the server than clip_norm screens"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": "adaptiv"}, "clip_norm"),
        ({"sample_cap": 0}, "sample_cap"),
        ({"defence": "medain"}, "defence: unknown defence 'medain'; did you mean 'median'"),
        ({"defence": "krum", "defence_strength": 0.7}, "defence_strength: krum takes a share below 0.5, got 0.7"),
    ],
)
def test_contradictions_are_explained(keys, message):
    given = {**SMALL, **keys}
    if given["method"] != "heterofl":
        given = {key: value for key, value in given.items() if key not in ("tiers", "tier_assignment")}
    with pytest.raises(ConfigError, match=message):
        prepare(RunConfig.of(given))


def test_the_record_follows_the_configuration():
    config = RunConfig(sample_cap="off", clip_norm="adaptive", clip_quantile=0.8, defence="krum", defence_strength=0.3)
    chain = chain_of(config)
    assert chain.stages == (PLAIN, Clip(None, 1.0, 0.8, 0.2), Defended(defence_named("krum", 0.3)))
    assert not chain.folds
    assert chain.at_clients == (Clip(None, 1.0, 0.8, 0.2), PLAIN)
    assert chain_of(RunConfig(clip_norm=1.0)).folds
    assert chain_of(RunConfig()).stages == (PLAIN, Capped("auto"))


def test_clipping_is_switched_off_by_name():
    """As a flag of fed-round does for one round of a run that clips."""
    clips = RunConfig(clip_norm=1.0)
    assert RunConfig.of({**clips.model_dump(), "clip_norm": "off"}).clip_norm is None
