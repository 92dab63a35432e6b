"""Client samplers: choices worked out by hand, what they may see, and runs that resume to the same bits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from runs import checkpoint_of, lines_of, stopped_after

from edgefl import RunConfig
from edgefl.errors import ConfigError, EdgeflError
from edgefl.registry import samplers
from edgefl.run.prepare import prepare
from edgefl.run.trained import without_training
from edgefl.server.checkpoint import of_file
from edgefl.server.light_round import light_round
from edgefl.server.sampler import Known, Sampler, choice, heard, sampler_of
from edgefl.server.samplers.oort import Oort

SMALL: dict[str, Any] = {
    "dataset": "digits", "model": "mlp", "method": "heterofl", "tiers": (1.0, 0.5), "clients": 8, "per_round": 2, "rounds": 4,
    "local_epochs": 1, "conditions": "ideal", "bundle": False, "eval_samples": 100,
}  # fmt: skip
NAN = float("nan")


def known(**figures: list[float]) -> Known:
    of = Known.of({}, 6, 3, lambda clients: ["phone"] * len(clients))
    return Known(3, **{**{k: v for k, v in vars(of).items() if k != "round"}, **{k: np.array(v) for k, v in figures.items()}})


def chosen(text: str, count: int, of: Known, candidates: tuple[int, ...] = (5, 4, 3, 2, 1, 0)) -> list[int]:
    pick = choice(sampler_of(text), of, lambda: np.random.default_rng(0))
    return pick(np.array(candidates), count).tolist()


def test_nobody_comes_twice_before_everybody_once():
    assert chosen("fresh", 3, known(rounds=[0, 1, 0, 2, 1, 1])) == [2, 0, 5]
    assert chosen("fresh", 9, known(rounds=[0, 1, 0, 2, 1, 1])) == [2, 0, 5, 4, 1, 3]


def test_reserved_places_come_first_and_any_client_fills_the_others():
    devices = np.array(["phone", "gateway", "phone", "board", "gateway", "phone"])
    of = replace(known(), devices=lambda clients: devices[clients].tolist())
    assert chosen("reserved(slots='gateway:1,board:2')", 4, of) == [4, 3, 5, 2]
    assert chosen("reserved", 3, of) == [5, 4, 3]


@pytest.mark.parametrize(
    ("slots", "told"),
    [
        ("phone:1,phone:2", "reservations of phone overlap, 1 and 2 places; give one"),
        ("phone", "expected DEVICE:NUMBER for each class, such as gateway:2,board:3, got 'phone'"),
        ("phone:0", "got 'phone:0'"),
        ("watch:1", "no class of the fleet is 'watch'; its classes are flagship-phone, mid-range-phone, low-end-phone"),
        ("low-end-phone:3", "low-end-phone:3 are 3 places, and a round asks 2 clients; reserve fewer, or ask more"),
    ],
)
def test_reservations_that_overlap_or_cannot_be_are_refused_in_a_sentence(slots, told):
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        prepare(RunConfig(**SMALL | {"profile": "phone", "sampler": f"reserved(slots={slots!r})"}))
    assert "\n" not in str(caught.value)


def test_every_round_of_a_what_if_asks_clients_of_a_reserved_class():
    keys = {
        "profile": "phone",
        "clients": 60,
        "partition": "index:60",
        "sampler": "reserved(slots='low-end-phone:2')",
        "rounds": 6,
    }
    found = list(without_training(prepare(RunConfig(**SMALL | keys)), 6, light_round))
    full = list(without_training(prepare(RunConfig(**SMALL | keys)), 6))
    assert all(set(record.devices) == {"low-end-phone"} for record in found)
    assert [record.foreseen.clients.tolist() for record in found] == [[c.client for c in record.clients] for record in full]


def test_the_highest_losses_of_some_candidates_are_chosen():
    losses = [9.0, 0.5, 3.0, NAN, 1.0, 2.0]
    assert chosen("power-of-choice(candidates=4)", 2, known(losses=losses)) == [3, 2]  # of 5, 4, 3 and 2; 3 has none yet
    assert chosen("power-of-choice(candidates=1)", 2, known(losses=losses)) == [3, 2]  # of twice as many as are asked
    assert chosen("power-of-choice", 2, known(losses=losses)) == [3, 0]


def test_a_utility_by_hand():
    """n·loss + √(0.1·ln R / L), times (T/t)² if slower than the median T = 4 s."""
    of = known(losses=[2.0, 2.0, NAN, NAN, NAN, NAN], durations_s=[2.0, 6.0, NAN, NAN, NAN, NAN], samples=[10, 10, 0, 0, 0, 0],
               last=[1, 2, 0, 0, 0, 0])  # fmt: skip
    found = Oort().utilities(np.array([0, 1]), of)
    bonus = np.sqrt(0.1 * np.log(3) / np.array([1, 2]))
    assert found == pytest.approx([20 + bonus[0], (20 + bonus[1]) * (4 / 6) ** 2])
    assert sorted(chosen("oort(explore=0, least_explore=0)", 1, of, (0, 1))) == [0]
    assert chosen("oort(explore=1, least_explore=1)", 4, of)[:4] == [5, 4, 3, 2]
    assert set(chosen("oort", 6, of)) == set(range(6))


def test_a_group_of_equally_fast_clients_is_chosen():
    fast = known(durations_s=[1.0, 1.1, 1.2, 9.0, 9.1, 9.2], losses=[0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    assert set(chosen("tifl(groups=2)", 3, fast)) == {3, 4, 5}  # the others have nothing to learn
    slow = known(durations_s=[1.0, 1.1, 1.2, 9.0, 9.1, 9.2], losses=[1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    assert set(chosen("tifl(groups=2)", 3, slow)) == {0, 1, 2}
    assert len(set(chosen("tifl(groups=2)", 5, slow))) == 5
    assert chosen("tifl", 2, known(durations_s=[1.0, NAN, 2.0, NAN, 3.0, NAN])) == [5, 3]  # measured first


@pytest.mark.parametrize("text", samplers.names())
def test_two_workers_and_a_resumed_run_ask_the_same_clients(text, tmp_path):
    config = RunConfig.of({**SMALL, "sampler": text})
    whole = stopped_after(config, tmp_path / "whole", 4)
    part = stopped_after(config, tmp_path / "part", 2)
    stopped_after(config, part, 4, resume=True)
    assert lines_of(part) == lines_of(whole)
    assert checkpoint_of(part, 4).name == checkpoint_of(whole, 4).name
    memory = of_file(checkpoint_of(whole, 4)).memory
    if text in ("uniform", "reserved"):
        assert not memory
    else:
        assert int(memory["sampler:rounds"].sum()) == 8
        assert int(torch.isfinite(memory["sampler:losses"]).sum()) == int((memory["sampler:rounds"] > 0).sum())
    if text == "fresh":
        assert memory["sampler:rounds"].tolist() == [1] * 8


def test_an_asynchronous_server_asks_by_a_sampler(tmp_path):
    config = RunConfig.of({**SMALL, "sampler": "fresh", "mode": "async", "buffer": 2, "rounds": 2})
    lines = lines_of(stopped_after(config, tmp_path / "run", 2))
    assert all(len(line["clients"]) >= 2 for line in lines)


def test_a_blind_sampler_leaves_no_trace():
    assert heard(sampler_of("uniform"), {}, (), 1, 4) == {}


def test_what_a_sampler_returns_is_checked():
    class Twice(Sampler):
        def chosen(self, candidates, count, known, rng):
            return candidates[[0, 0]]

    pick = choice(Twice(), known(), lambda: np.random.default_rng(0))
    with pytest.raises(EdgeflError, match=r"sampler Twice: chosen returned \[5, 5\], expected 2 different candidates"):
        pick(np.array([5, 4, 3]), 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ort", "unknown sampler 'ort'; did you mean 'oort'?"),
        ("oort(", "expected a name with options, such as power-of-choice(candidates=20)"),
        ("oort(explores=1)", "sampler: oort: explores: unknown key; did you mean 'explore'?"),
        ("oort(explore=2)", "sampler: oort: explore must be at most 1, got 2"),
    ],
)
def test_wrong_samplers_are_refused(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        prepare(RunConfig.of({**SMALL, "sampler": text}))


def test_a_choice_that_is_not_random_hides_nobody():
    private = {"privacy": "central", "clip_norm": 0.5, "noise_multiplier": 1.0}
    assert prepare(RunConfig.of({**SMALL, **private})).features[0].sampling is not None
    spending = prepare(RunConfig.of({**SMALL, **private, "sampler": "oort"})).features[0]
    assert spending.sampling is None
    assert "sampler oort decides who takes part" in spending.unsampled
