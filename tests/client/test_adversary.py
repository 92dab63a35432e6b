"""Adversaries: what each sends and trains on by hand, which clients they are, and runs that have them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import checkpoint_of, lines_of, stopped_after
from torch import Tensor

from edgefl import RunConfig, simulate
from edgefl.client.adversary import Adversaries, Adversary, lacks_of, started
from edgefl.client.client import Clients
from edgefl.client.job import Job
from edgefl.client.messages import task_fields, task_of
from edgefl.data.digits import digits
from edgefl.data.shakespeare import shakespeare
from edgefl.data.sources import Dataset, Split
from edgefl.engine.contract import in_order
from edgefl.engine.inline import InlineEngine
from edgefl.engine.pool import PoolEngine
from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.records import Tier
from edgefl.registry import adversaries, methods
from edgefl.rng import generator
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.run.trained import Trained, attack_success
from edgefl.server.client_store import ClientStore
from edgefl.testing.cases import ARCHITECTURES, Case, images
from edgefl.testing.rules_of_engines import TASK, jobs_of
from edgefl.util.compute import one_thread
from edgefl.util.spec import shared
from edgefl.wire.payload import decode, encode, stored_tensors

# By hand. The change is [[0.5, -1], [-1, 0.25]], whose root mean square is √(2.3125 / 4).
START, TRAINED = torch.tensor([[1.0, -0.5], [2.0, 0.0]]), torch.tensor([[1.5, -1.5], [1.0, 0.25]])
SENT: dict[str, tuple[dict[str, Any], list[list[float]]]] = {
    "sign-flip": ({"scale": 10}, [[-4.0, 9.5], [12.0, -2.5]]),
    "scaled": ({"scale": 3}, [[2.5, -3.5], [-1.0, 0.75]]),
    "inflated": ({"flip": True}, [[0.5, 0.5], [3.0, -0.25]]),
    "backdoor": ({"scale": 2}, [[2.0, -2.5], [0.0, 0.5]]),
    "label-flip": ({}, [[1.5, -1.5], [1.0, 0.25]]),
}


def attacker(name: str, **options: Any) -> Adversary:
    found: Adversary = adversaries.load(name).of(options)
    return found


@pytest.mark.parametrize("name", SENT)
def test_what_is_sent_by_hand(name: str) -> None:
    options, expected = SENT[name]
    assert attacker(name, **options).sent(START, TRAINED, generator(0, "draw")).tolist() == expected


class _Odd(Adversary):
    def poisoned(self, own: Split, classes: int, rng: np.random.Generator) -> Any:
        return own.at(np.arange(1)) if classes else None

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Any:
        return trained[0] if start.any() else None

    def claimed(self, samples: int) -> Any:
        return None if samples else 0


def test_what_an_adversary_of_ones_own_returns_is_checked() -> None:
    odd, own = Adversaries(_Odd(), shared("odd:0.5"), 2, 0), Split(np.ones((3, 2), np.float32), np.zeros(3, np.int64))
    (client,) = odd.listed
    for samples, found in ((5, "None"), (0, "0")):
        with pytest.raises(
            ConfigError, match=f"adversary _Odd: claimed returned {found} for {samples}, expected an integer from 1"
        ):
            odd.claimed(client, samples)
    with pytest.raises(ConfigError, match=r"adversary _Odd: poisoned returned NoneType, expected a Split of \(3, 2\) and \(3,\)"):
        odd.poisoned(client, own, 0)
    with pytest.raises(ConfigError, match=r"poisoned returned a Split of \(1, 2\) and \(1,\), expected a Split of \(3, 2\)"):
        odd.poisoned(client, own, 2)
    with pytest.raises(ConfigError, match=r"adversary _Odd: sent returned a tensor \(2,\) for w, expected a tensor \(2, 2\)"):
        odd.upload(0, client, {"w": START}, {"w": TRAINED})
    with pytest.raises(ConfigError, match="sent returned NoneType for w"):
        odd.upload(0, client, {}, {"w": TRAINED})


@pytest.mark.parametrize(
    ("name", "options", "deviation"),
    [
        ("noise", {"scale": 2}, 2 * (2.3125 / 4) ** 0.5),
        ("free-rider", {"noise": 0.1}, 0.1 * (5.25 / 4) ** 0.5),
        ("sybil", {"scale": 0.5}, 0.5 * (5.25 / 4) ** 0.5),
    ],
)
def test_noise_by_hand(name: str, options: dict[str, Any], deviation: float) -> None:
    sent = attacker(name, **options).sent(START, TRAINED, generator(0, "draw"))
    drawn = generator(0, "draw").standard_normal((2, 2), dtype=np.float32)
    assert sent.numpy() == pytest.approx(START.numpy() + np.float32(deviation) * drawn, rel=1e-6)


def test_control_variates_begin_with_zeros() -> None:
    sent = attacker("sign-flip", scale=2).upload({"w": START}, {"w": TRAINED, "control:w": START}, generator(0, "draw"))
    assert sent["control:w"].tolist() == [[-2.0, 1.0], [-4.0, 0.0]]


def test_labels_are_flipped_by_hand() -> None:
    own = Split(np.zeros((4, 2), np.float32), np.array([0, 3, 9, 5]))
    assert attacker("label-flip").poisoned(own, 10, generator(0, "draw")).y.tolist() == [9, 6, 0, 4]
    one = attacker("label-flip", labels={3: 8})
    assert one.poisoned(own, 10, generator(0, "draw")).y.tolist() == [0, 8, 9, 5]
    goal = one.goal(own, 10)
    assert goal is not None
    assert goal.y.tolist() == [8]


def test_a_trigger_by_hand() -> None:
    image = np.array([[[0.5, -1.0, 0.25], [0.0, 2.0, 1.0], [-0.5, 0.75, -2.0]]], np.float32)
    own = Split(np.stack([image, -image, image, image]), np.array([1, 2, 0, 1]))
    door = attacker("backdoor", target=1, pixels=2, poisoned_share=0.5)
    trigger = [[[0.5, -1.0, 0.25], [0.0, 2.0, 2.0], [-0.5, 2.0, 2.0]]]
    poisoned = door.poisoned(own, 3, generator(0, "draw"))
    changed = [i for i in range(4) if not np.array_equal(poisoned.x[i], own.x[i])]
    assert len(changed) == 2
    assert changed == sorted(generator(0, "draw").permutation(4)[:2].tolist())
    assert all(poisoned.y[i] == (1 if i in changed else own.y[i]) for i in range(4))
    goal = door.goal(own, 3)
    assert goal is not None
    assert goal.y.tolist() == [1, 1]
    assert goal.x[1].tolist() == trigger
    assert goal.x[0, 0, 2, 2] == 2.0  # the brightest of the negative
    assert own.x[2].tolist() == image.tolist()


def test_more_samples_are_claimed() -> None:
    assert attacker("inflated", times=7).claimed(12) == 84
    some = Adversaries.of("inflated:0.25(times=7)", 12, 0)
    assert some.kind.claims
    assert [some.claimed(client, 10) for client in range(12)] == [70 if client in some.listed else 10 for client in range(12)]


# Which clients --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "clients", "count"), [(0.1, 20, 2), (0.25, 10, 3), (0.5, 3, 2), (0.001, 20, 1), (0.2, 10**9, 2 * 10**8)]
)
def test_a_share_of_the_clients_is_drawn(share: float, clients: int, count: int) -> None:
    some = Adversaries.of(f"noise:{share}", clients, 0)
    assert some.count == count
    if clients < 10**6:
        assert len(some.listed) == sum(map(some.includes, range(clients))) == count
        assert some.among(range(clients)) == some.listed


def test_who_they_are_depends_on_the_seed_and_is_even() -> None:
    """Of 400 seeds with 5 of 20 clients, each client has 100 ± 4 standard deviations of √(400 · ¼ · ¾)."""
    counts = Counter(client for seed in range(400) for client in Adversaries.of("noise:0.25", 20, seed).listed)
    assert sum(counts.values()) == 2_000
    assert all(abs(counts[client] - 100) < 4 * 75**0.5 for client in range(20)), counts


def test_sybils_send_the_same_and_other_adversaries_do_not() -> None:
    for name, equal in (("sybil", True), ("noise", False), ("free-rider", False)):
        some = Adversaries.of(f"{name}:0.5", 8, 0)
        one, other, later = (some.upload(*key, {"w": START}, {"w": TRAINED})["w"] for key in ((1, 0), (1, 5), (2, 0)))
        assert torch.equal(one, other) == equal
        assert not torch.equal(one, later)


# In a client ----------------------------------------------------------------------------------------------------------------------


def sent_by(clients: Clients, method: str = "heterofl") -> list[dict[str, Tensor]]:
    with one_thread():
        return [stored_tensors(clients.run(job).payload, "a client") for job in jobs_of(12, method)]


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "fedhm", "flanc"])
def test_a_flipped_update_is_the_honest_one_about_what_was_received(method: str) -> None:
    spec = "sign-flip:0.25(scale=3)"
    bad = Adversaries.of(spec, 12, 0).listed
    flipped, honest = sent_by(Clients(replace(TASK, adversary=spec), digits()), method), sent_by(Clients(TASK, digits()), method)
    nothing = sent_by(Clients(replace(TASK, adversary="free-rider:0.25(noise=0)"), digits()), method)
    for client in bad:
        for name, start in nothing[client].items():
            assert torch.equal(flipped[client][name], start - 3.0 * (honest[client][name] - start)), name
        assert any(not torch.equal(honest[client][name], start) for name, start in nothing[client].items())


def test_a_free_rider_sends_what_it_received_and_takes_no_step() -> None:
    clients, jobs = Clients(replace(TASK, adversary="free-rider:0.25(noise=0)"), digits()), jobs_of(12)
    for client in Adversaries.of("free-rider:0.25", 12, 0).listed:
        outcome = clients.run(jobs[client])
        assert (outcome.status, outcome.steps, outcome.train_loss) == ("trained", 0, None)
        assert outcome.measured_training_memory_bytes is None
        received = stored_tensors(jobs[client].payload, "the server")
        sent = decode(outcome.payload, {name: tuple(t.shape) for name, t in received.items()}, "a client")
        assert all(torch.equal(sent[name], tensor) for name, tensor in received.items())


@pytest.mark.parametrize("name", methods.names())
def test_what_a_client_would_send_without_training_is_known_for_every_method(name: str) -> None:
    method = create(name)
    case = Case(method, ARCHITECTURES["cnn"], tuple(Tier(ratio) for ratio in method.default_tiers))
    submodel = case.submodel(case.state(), case.tiers[-1], 0)
    start = started(method, case.received(submodel, *images(9, 0)))
    shapes = method.upload_shapes(case.architecture, case.tiers[-1])
    assert {name: tuple(tensor.shape) for name, tensor in start.items()} == shapes


def test_an_update_beyond_float32_is_a_client_that_diverged() -> None:
    clients = Clients(replace(TASK, adversary="scaled:0.25(scale=1e300)"), digits())
    bad = Adversaries.of("scaled:0.25", 12, 0).listed
    assert [clients.run(job).status for job in jobs_of(12)] == ["diverged" if n in bad else "trained" for n in range(12)]


@pytest.mark.parametrize("spec", ["backdoor:0.25(scale=3)", "free-rider:0.25", "sybil:0.25"])
def test_workers_and_groups_have_the_same_adversaries(spec: str) -> None:
    task = replace(TASK, adversary=spec, codec="int8")
    assert task_of(task_fields(task)) == task
    with one_thread():
        expected = list(in_order(InlineEngine(Clients(task, digits())), jobs_of(16)))
        together = list(in_order(InlineEngine(Clients(task, digits()), 8), jobs_of(16)))
    with PoolEngine(task, 2, data=digits()) as engine:
        assert list(in_order(engine, jobs_of(16))) == expected
    assert [(one.status, one.steps) for one in together] == [(one.status, one.steps) for one in expected]


# In a run -------------------------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "profile": "lab", "conditions": "ideal", "rounds": 3, "clients": 8, "per_round": 5, "local_epochs": 1, "data_share": 0.2,
    "model": "mlp", "method": "heterofl", "eval_every": 3, "tier_assignment": "uniform",
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "backdoor, codec": {"adversary": "backdoor:0.25(scale=4)", "codec": "int8"},
    "free-rider, async": {"adversary": "free-rider:0.25", "mode": "async", "buffer": 2},
    "sign-flip, scaffold": {
        **{"adversary": "sign-flip:0.25(scale=2)", "objective": "scaffold", "optimizer": "sgd", "weight_decay": 0.0},
        "method": "fedavg",
    },
}


@pytest.mark.parametrize("what", RUNS)
def test_a_stopped_run_resumes_to_the_same_bits_over_workers(what: str, tmp_path: Path) -> None:
    config = RunConfig.of({**SMALL, **RUNS[what]})
    whole = stopped_after(config, tmp_path / "whole", 3)
    again = stopped_after(config, tmp_path / "stopped", 1)
    workers = config.model_copy(update={"workers": 2, "engine": "pool"})
    again = stopped_after(workers, again, 3, resume=True)
    assert lines_of(whole) == lines_of(again)
    assert checkpoint_of(whole, 3).read_bytes() == checkpoint_of(again, 3).read_bytes()


def test_onnxruntime_trains_the_same_poisoned_samples(tmp_path: Path) -> None:
    found = []
    for runtime in ("torch", "onnx"):
        config = RunConfig.of({**SMALL, "rounds": 1, "method": "fedavg", "adversary": "label-flip:0.25", "runtime": runtime})
        found.append(lines_of(stopped_after(config, tmp_path / runtime, 1))[0])
    for one, other in zip(found[0]["clients"], found[1]["clients"], strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-3)


def test_records_summary_and_report_name_the_adversaries(tmp_path: Path) -> None:
    config = RunConfig.of({**SMALL, "method": "fedavg", "rounds": 1, "eval_every": 1, "adversary": "backdoor:0.25(target=3)"})
    result = simulate(config, tmp_path / "run")
    bad = Adversaries.of("backdoor:0.25", 8, 0).listed
    assert result.summary["attack"] == {"adversary": "backdoor:0.25(target=3)", "count": 2, "clients": bad}
    (line,) = lines_of(result.folder)
    assert line["adversaries"] == [client["client"] for client in line["clients"] if client["client"] in bad]
    assert line["observed"]["attack_success"].keys() == line["accuracy"].keys()
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert f"backdoor:0.25(target=3), 2 of 8 clients: {bad[0]}, {bad[1]}" in page
    assert "Success of the attack, by tier" in page


def test_a_run_without_an_attack_says_nothing_of_one(tmp_path: Path) -> None:
    (line,) = lines_of(stopped_after(RunConfig.of({**SMALL, "rounds": 1, "eval_every": 1}), tmp_path / "run", 1))
    assert "adversaries" not in line
    assert "observed" not in line


def rounds_of(run: Run, folder: Path) -> tuple[Any, Any]:
    """Return the state and the record after the run's first round."""
    with one_thread(), ClientStore(folder) as store, InlineEngine(run.clients) as engine:
        return run.round(run.start(), engine, store)


def test_a_free_rider_spends_no_macs_and_claims_count_in_the_average(tmp_path: Path) -> None:
    honest = prepare(RunConfig.of({**SMALL, "method": "fedavg", "per_round": 8}))
    rides = prepare(RunConfig.of({**SMALL, "method": "fedavg", "per_round": 8, "adversary": "free-rider:0.25(noise=0)"}))
    (_, before), (_, after) = rounds_of(honest, tmp_path / "a"), rounds_of(rides, tmp_path / "b")
    bad = Adversaries.of("free-rider:0.25", 8, 0).listed
    for one, other in zip(before.clients, after.clients, strict=True):
        idle = other.client in bad
        assert one.expected.timing.total_s == other.expected.timing.total_s
        assert (other.expected.macs == 0) == idle
        assert (other.expected.timing.compute_j < one.expected.timing.compute_j) == idle
        assert other.expected.upload_bytes == one.expected.upload_bytes


def test_inflated_samples_pull_the_average(tmp_path: Path) -> None:
    """With a million times its samples, the only adversary's update is the aggregate, up to a millionth."""
    config = RunConfig.of(
        {**SMALL, "method": "fedavg", "per_round": 8, "adversary": "inflated:0.1(times=1_000_000)", "sample_cap": "off"}
    )
    run = prepare(config)
    (bad,) = Adversaries.of("inflated:0.1", 8, 0).listed
    state, _ = rounds_of(run, tmp_path)
    alone = prepare(config.model_copy(update={"adversary": None}))
    (tier,) = alone.tiers
    submodel = alone.method.submodel(alone.start().model, tier, generator(0, 1, "submodel"))
    with one_thread():
        outcome = alone.clients.run(Job(1, bad, alone.method, tier, encode(dict(submodel.tensors))))
    for name, tensor in stored_tensors(outcome.payload, "the adversary").items():
        assert torch.allclose(state.model.tensors[name], tensor, atol=1e-4), name


def test_claims_are_capped_at_three_times_the_median_of_the_round(tmp_path: Path) -> None:
    bad = Adversaries.of("inflated:0.25", 8, 0).listed
    for method in ("fedavg", "flanc"):  # workers add up the updates of the first, the server reads those of the second
        config = RunConfig.of(
            {**SMALL, "method": method, "per_round": 8, "partition": "iid", "adversary": "inflated:0.25(times=50)"}
        )
        _, record = rounds_of(prepare(config), tmp_path / method)
        samples = {client.client: client.expected.samples for client in record.clients}
        claims = sorted(50 * of if client in bad else of for client, of in samples.items())
        counted = {of.client: of.screened.counted_samples for of in record.clients if of.screened is not None}
        assert counted == dict.fromkeys(bad, 3 * claims[3])


# What makes no sense --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adversary": "sign-flip"}, r"adversary: expected NAME:SHARE or NAME:SHARE\(option=value, …\), such as sign-flip:0.1"),
        ({"adversary": "sign-flip:1.5"}, "with a share above 0 and below 1, got 'sign-flip:1.5'"),
        ({"adversary": "sign-flip:nan"}, "with a share above 0 and below 1"),
        ({"adversary": "sign-flip:0.1(scale=10"}, "expected NAME:SHARE"),
        ({"adversary": "sign-flip:0.1(10)"}, "expected NAME:SHARE"),
        ({"adversary": f"sign-flip:0.1(scale={'(' * 3000}"}, "expected NAME:SHARE"),
        ({"adversary": "sing-flip:0.1"}, "unknown adversary 'sing-flip'; did you mean 'sign-flip'"),
        ({"adversary": "sign-flip:0.1(scael=10)"}, "adversary: sign-flip: scael: unknown key; did you mean 'scale'"),
        ({"adversary": "sign-flip:0.1(scale=0)"}, "adversary: sign-flip: scale must be above 0, got 0"),
        ({"adversary": "inflated:0.1(times=1.5)"}, "adversary: inflated: times must be a whole number, got 1.5"),
    ],
)
def test_a_wrong_specification_is_refused_at_once(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.of(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"adversary": "sign-flip:0.9", "clients": 2, "per_round": 1},
            "adversary: sign-flip:0.9 makes all of 2 clients adversaries",
        ),
        ({"adversary": "backdoor:0.1(target=10)"}, "adversary: backdoor: target: digits has labels 0 to 9, got 10"),
        ({"adversary": "backdoor:0.1(pixels=8)"}, "adversary: backdoor: pixels must be below 8"),
        ({"adversary": "label-flip:0.1(labels={1: 12})"}, "adversary: label-flip: labels: digits has labels 0 to 9, got 12"),
        (
            {"adversary": "sign-flip:0.1", "method": "standalone"},
            "sign-flip makes no sense with Stand-alone on digits: nothing travels",
        ),
        (
            {"adversary": "inflated:0.1"},
            "inflated makes no sense with HeteroFL on digits: HeteroFL weighs no client by the samples that it claims",
        ),
        (
            {"adversary": "backdoor:0.1", "permute_labels": True, "method": "fedper"},
            "backdoor makes no sense with FedPer on digits: permute_labels gives every client its own order",
        ),
    ],
)
def test_an_attack_that_makes_no_sense_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(RunConfig.of({**SMALL, **values}))


def test_texts_and_targets_lack_what_attacks_need() -> None:
    fedavg = create("fedavg")
    assert lacks_of(shakespeare(), False, fedavg) == {"images": "a sample of shakespeare is no image"}
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.linspace(-1.0, 1.0, 20, dtype=np.float32)
    targets = Dataset.from_arrays(x, y, name="heights")
    assert lacks_of(targets, False, fedavg)["labels"] == "heights has float32 targets, no labels"
    assert not lacks_of(digits(), False, fedavg)


def test_none_is_nobody() -> None:
    assert RunConfig.of({"adversary": "none"}).adversary is None
    assert RunConfig.of({"adversary": "sign-flip:.10( scale = 10 )"}).adversary == "sign-flip:0.1(scale=10)"


def test_success_is_the_share_that_gets_the_wanted_label(tmp_path: Path) -> None:
    """The network that answers 0 always gives every triggered image the label of the attack, and no other label."""
    for target, expected in ((0, 1.0), (4, 0.0)):
        run = prepare(RunConfig.of({**SMALL, "method": "fedavg", "adversary": f"backdoor:0.2(target={target})"}))
        state = run.start()
        tensors = {name: torch.zeros_like(tensor) for name, tensor in state.model.tensors.items()}
        (bias,) = [name for name, tensor in tensors.items() if tensor.shape == (10,)]
        tensors[bias][0] = 1.0
        blank = replace(state, model=state.model.replace(tensors))
        success = attack_success(Trained(run, blank, ClientStore(tmp_path)))
        assert set(success.values()) == {expected}
