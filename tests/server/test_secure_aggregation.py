"""Secure aggregation in simulated rounds: who is grouped, what it costs, who is lost, and that sums are those of plain rounds."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from runs import checkpoint_of, lines_of, stopped_after
from small_fleet import small, write_device, write_fleet

from edgefl import RunConfig, simulate
from edgefl.client.job import Job
from edgefl.client.masking import Masking
from edgefl.client.messages import Setups as JobSetups
from edgefl.client.messages import read_jobs, write_jobs
from edgefl.engine.inline import InlineEngine
from edgefl.errors import ConfigError
from edgefl.fleet.clock import stage_s
from edgefl.methods.create import create
from edgefl.records import Stage, Tier
from edgefl.registry import methods
from edgefl.report.run_files import read_rounds
from edgefl.run.dry_run import dry_run
from edgefl.run.trained import without_training
from edgefl.run.whatif import whatif
from edgefl.secagg.messages import stages, vector_bytes
from edgefl.secagg.vector import Coding, unpacked
from edgefl.server.client_store import ClientStore
from edgefl.server.forecast import Asked
from edgefl.server.grouping import groups_in


@pytest.fixture
def fleet(tmp_path):
    """Two classes on different links; no session is lost."""
    write_device(tmp_path, "quick")
    write_device(tmp_path, "far", rtt_ms=200)
    return write_fleet(tmp_path, {"quick": 0.5, "far": 0.5}, behaviour={})


def play(run, tmp_path, state=None):
    """Return the state and the record of a round."""
    store = ClientStore(tmp_path / f"clients-{len(list(tmp_path.iterdir()))}.sqlite")
    return run.round(state or run.start(), InlineEngine(run.clients), store)


def observed(record):
    return record.observed["secure_aggregation"]


def expected(run, clients=range(12), turn=1):
    return run.forecast.expected(Asked(np.array(clients, np.int64), turn, 0.0), {})


# What it costs -----------------------------------------------------------------------------------------------------------------


def test_a_tier_s_bytes_are_those_of_every_message(fleet):
    plain = small(fleet, per_round=6)
    run = small(fleet, per_round=6, secure_aggregation="secagg:bits=20")
    (before,), (cost,) = plain.plan.costs.values(), run.plan.costs.values()
    values = before.params + 1
    assert cost.model_bytes == (before.download_bytes, vector_bytes(values, 20))
    # Worked out by hand for five neighbours: 68·5 and 86·5 and 4·5 down, 64 and 86·5 and 37·6 up.
    assert cost.download_bytes - before.download_bytes == 340 + 430 + 20
    assert cost.upload_bytes - -(-values * 20 // 8) == 64 + 430 + 222
    assert cost.secure.mask_values == 6 * values
    assert before.secure is None


def test_a_session_has_three_more_round_trips_and_waits_for_the_slowest(fleet):
    plain = {e.client: e.timing for e in expected(small(fleet))}
    found = expected(small(fleet, secure_aggregation="secagg:masks=costed"))
    (members,) = groups_in(found).values()
    assert len(members) == 12
    keys, shares, unmasking = stages(11, 11, 11)
    slowest_s = sum(0.2 + up / 0.5e6 + down / 1e6 for _, up, down in (keys, shares))
    for session in found:
        assert session.timing.agree_s == pytest.approx(slowest_s)
        assert session.timing.unmask_s == 0  # known when the round closes
        assert session.timing.download_s == plain[session.client].download_s
        rtt_s = 0.2 if session.device == "far" else 0.05
        assert session.grouped.unmask_s == pytest.approx(rtt_s + unmasking.upload_bytes / 0.5e6 + unmasking.download_bytes / 1e6)
        assert session.timing.compute_j > plain[session.client].compute_j


def test_records_have_every_stage_and_wait_of_a_round(fleet, tmp_path):
    run = small(fleet, per_round=12, secure_aggregation="secagg")
    _, record = play(run, tmp_path)
    (line,) = observed(record)
    assert (line["clients"], line["agreed"], line["vectors"], line["answers"], line["summed"]) == (12, 12, 12, 12, True)
    cost = run.plan.costs[run.tiers[0]]
    for client in record.clients:
        entry = client.to_json()
        assert (entry["download_bytes"], entry["upload_bytes"]) == (cost.download_bytes, cost.upload_bytes)
        assert list(entry["secure"]["stages"]) == ["keys", "shares", "unmasking"]
        assert client.expected.timing.total_s <= record.round_s + 1e-9
    longest = max(client.expected.total_s for client in record.clients)
    assert longest == pytest.approx(record.round_s)
    assert line["upload_bytes"] == sum(s.upload_bytes for c in record.clients for s in c.expected.grouped.stages)
    # Threshold 7 of 12: the seventh answer ends the last stage, and the sixth of the quick class is not enough.
    far = sum(client.expected.device == "far" for client in record.clients)
    assert line["unmask_s"] == pytest.approx(sorted(c.expected.grouped.unmask_s for c in record.clients)[6])
    assert far == 6
    assert "secure" not in play(small(fleet, per_round=12), tmp_path)[1].clients[0].to_json()


def test_masks_take_time_only_where_a_profile_knows_its_memory(tmp_path):
    run = small("phone", secure_aggregation="secagg")
    plain = small("phone")
    (cost,) = run.plan.costs.values()
    (before,) = plain.plan.costs.values()
    for of_class in run.plan.classes:
        costs = of_class.device.compute.training_step
        secured = run.plan.timing(of_class.device, run.tiers[0], 100)
        bare = plain.plan.timing(of_class.device, run.tiers[0], 100)
        assert costs is not None
        per_byte = costs.elementwise_ps_per_byte.value * 1e-12
        assert secured.train_s - bare.train_s == pytest.approx(16 * cost.secure.mask_values * per_byte)
        assert secured.agree_s == pytest.approx(sum(stage_s(of_class.device, stage) for stage in cost.secure.agreement))
        assert secured.total_s > bare.total_s
    assert before.secure is None


def test_budgets_include_the_messages(tmp_path):
    write_device(tmp_path, "board")
    plain = small(write_fleet(tmp_path, {"board": 1.0}), per_round=6)
    (cost,) = plain.plan.costs.values()
    tight = write_fleet(tmp_path, {"board": 1.0}, budget=f"download_bytes = {cost.download_bytes + 700}\n")
    assert small(tight, per_round=6).plan.classes[0].tier == Tier(1.0)
    with pytest.raises(Exception, match="download needs 77.9 kB, has 77.8 kB"):
        small(tight, per_round=6, secure_aggregation="secagg")
    assert small(tight, per_round=5, secure_aggregation="secagg").plan.classes[0].tier == Tier(1.0)


def test_whatif_shows_what_it_costs(fleet):
    def rows(**keys):
        return whatif(small(fleet, **keys).config, over_selections=(1.0,)).rows[0]

    masked, plain = rows(secure_aggregation="secagg", per_round=6), rows(per_round=6)
    assert masked.round_s > plain.round_s + 3 * 0.2
    swept = whatif(small(fleet, per_round=6).config, secure_aggregations=("off", "secagg")).rows
    assert [(row.label, row.round_s) for row in swept] == [
        ("secure sums off", plain.round_s),
        ("secure sums secagg", masked.round_s),
    ]
    with pytest.raises(ConfigError, match="secure_aggregation"):
        whatif(small(fleet, method="fedhm").config, secure_aggregations=("off", "secagg"))


# Groups ------------------------------------------------------------------------------------------------------------------------


def tiered(fleet, **keys):
    keys = {"method": "heterofl", "tiers": (1.0, 0.5), "tier_assignment": "uniform", **keys}
    return small(fleet, **keys)


def test_only_clients_of_one_tier_and_round_are_grouped(fleet):
    run = tiered(fleet, clients=40, per_round=40, secure_aggregation="secagg:group=7")
    found = expected(run, range(40))
    assert len(groups_in(found)) >= 6
    for (tier, _), members in groups_in(found).items():
        assert {m.tier for m in members} == {tier}
        assert 3 <= len(members) <= 7
    again = {key: [m.client for m in members] for key, members in groups_in(expected(run, range(40), turn=2)).items()}
    assert again != {key: [m.client for m in members] for key, members in groups_in(found).items()}


def test_a_tier_with_too_few_clients_is_not_asked(fleet, tmp_path):
    run = tiered(fleet, per_round=12, tier_shares=(0.1, 0.9), secure_aggregation="secagg:least=4,group=12")
    _, record = play(run, tmp_path)
    refused = [client for client in record.clients if client.status == "refused"]
    trained = [client for client in record.clients if client.status == "trained"]
    assert len(refused) + len(trained) == 12
    assert 0 < len(refused) < 4
    (short,) = refused[0].expected.refusal
    assert str(short) == f"{short.device} cannot take tier 1: clients of a group needs 4, has {len(refused)}"
    assert refused[0].to_json()["download_bytes"] == 0
    lines = {line["tier"]: line for line in observed(record)}
    assert lines[1]["reason"] == f"{len(refused)} clients in this round, expected at least 4"
    assert lines[0.5]["summed"]


def test_every_group_is_waited_for(tmp_path):
    write_device(tmp_path, "quick", spread_sigma=0.3)
    write_device(tmp_path, "slow", training=0.001, spread_sigma=0.3)
    fleet = write_fleet(tmp_path, {"quick": 0.5, "slow": 0.5}, behaviour={"over_selection": 1.5})
    plain = next(iter(without_training(small(fleet, clients=24, per_round=8), 1)))
    assert {c.expected.device for c in plain.clients if c.status == "late"} == {"slow"}
    run = small(fleet, clients=24, per_round=8, secure_aggregation="secagg:group=5,least=3")
    record = next(iter(without_training(run, 1)))
    assert [(line["clients"], line["vectors"], line["summed"]) for line in observed(record)] == [(4, 3, True)] * 3
    assert sum(client.status == "late" for client in record.clients) == 3


# Losses ------------------------------------------------------------------------------------------------------------------------


def lossy(tmp_path, **behaviour):
    write_device(tmp_path, "board", spread_sigma=0.3)
    return write_fleet(tmp_path, {"board": 1.0}, behaviour=behaviour)


def test_lost_clients_are_recovered_from_or_fail_their_group(tmp_path):
    fleet = lossy(tmp_path, drop_out=0.2, interrupted=0.25)
    run = small(fleet, clients=60, per_round=60, secure_aggregation="secagg:group=6,masks=real")
    after, record = play(run, tmp_path)
    lines = observed(record)
    assert len(lines) == 10
    assert any(line["summed"] and line["vectors"] < line["agreed"] for line in lines)
    failed = [line for line in lines if not line["summed"]]
    assert failed
    for line in failed:
        assert "expected" in line["reason"]
    masked = [client for client in record.clients if client.status == "masked"]
    assert len(masked) == sum(line["vectors"] for line in failed)
    assert record.useful.clients == sum(line["vectors"] for line in lines if line["summed"])
    assert record.wasted.clients == 60 - record.useful.clients
    for client in record.clients:
        if not client.expected.grouped.agreed:
            assert client.status in ("dropped", "interrupted")
            assert client.expected.timing.train_s == 0
    before = run.start().model.tensors
    assert any(not torch.equal(tensor, before[name]) for name, tensor in after.model.tensors.items())
    dry = next(iter(without_training(run, 1)))
    assert [c.status for c in dry.clients] == [c.status for c in record.clients]
    assert dry.round_s == record.round_s


def test_a_lost_client_costs_the_wait_of_its_stage(tmp_path):
    run = small(lossy(tmp_path, drop_out=0.99), clients=60, per_round=60, secure_aggregation="secagg:stage_s=4")
    found = expected(run, range(60))
    early = [s for s in found if not s.grouped.agreed]
    assert early
    assert all(s.status == "dropped" for s in early)
    # Who answered the first stage waits for the second, in which others are lost; nobody is charged more than both waits.
    answered = [s for s in early if s.grouped.stages]
    assert answered
    assert all(s.timing.agree_s <= 8 for s in early)
    assert max(s.timing.agree_s for s in found) >= 4
    for session in early:
        timing, stages = session.timing, session.grouped.stages
        assert (timing.download_s, timing.train_s, timing.upload_s, session.macs) == (0, 0, 0, 0)
        assert session.upload_bytes == sum(stage.upload_bytes for stage in stages)
        assert session.download_bytes == sum(stage.download_bytes for stage in stages)
        # The board's 0.25 W at rest, and its 300 and 100 nJ a byte.
        assert timing.compute_j == pytest.approx(0.25 * timing.agree_s)
        assert timing.radio_j == pytest.approx(300e-9 * session.upload_bytes + 100e-9 * session.download_bytes)


def test_a_round_without_a_sum_changes_nothing(tmp_path):
    run = small(lossy(tmp_path, interrupted=0.9), per_round=12, secure_aggregation="secagg")
    state = run.start()
    after, record = play(run, tmp_path, state)
    assert not any(line["summed"] for line in observed(record))
    assert all(torch.equal(after.model.tensors[name], tensor) for name, tensor in state.model.tensors.items())


# Sums --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "spec"), [("heterofl", "secagg"), ("fedavg", "secagg+:neighbours=4"), ("fedper", "secagg:bits=24")]
)
def test_masked_rounds_give_the_bits_of_unmasked_sums_and_nearly_those_of_plain_rounds(fleet, tmp_path, method, spec):
    keys = {"method": method, "per_round": 12}
    if method == "heterofl":
        keys |= {"tiers": (1.0, 0.5), "tier_assignment": "uniform", "partition": "classes:3"}
    texts = [f"{spec}{',' if ':' in spec else ':'}masks={how}" for how in ("real", "costed")]
    real, costed = (small(fleet, secure_aggregation=text, **keys) for text in texts)
    plain = small(fleet, **keys)
    found = {}
    for name, run in {"real": real, "costed": costed, "plain": plain}.items():
        state, record = play(run, tmp_path)
        found[name] = state.model.tensors
        assert record.useful.clients == 12
    step = real.rules.secure.coding(12, real.method.weighs_samples).step
    start = plain.start().model.tensors
    for name, tensor in found["plain"].items():
        assert torch.equal(found["real"][name], found["costed"][name])
        # The mean of 12 clients with at least one sample each: at most a step per client.
        assert (found["real"][name] - tensor).abs().max() <= 12 * step + 1e-6
    assert any(not torch.equal(found["real"][name], start[name]) for name in start)


def test_a_masked_run_that_was_stopped_resumes_to_the_same_bits_and_records(tmp_path):
    """Masks are drawn anew in the round that was lost; their sum is zero, and the seed gives the groups. Ten processor seconds."""
    keys = {
        "method": "fedavg",
        "model": "mlp",
        "tiers": (1.0,),
        "rounds": 2,
        "clients": 6,
        "per_round": 5,
        "local_epochs": 1,
        "seed": 3,
    }
    config = RunConfig.of({**keys, "data_share": 0.1, "conditions": "ideal", "secure_aggregation": "secagg"})
    whole = simulate(config, tmp_path / "whole").folder
    resumed = simulate(config, stopped_after(config, tmp_path / "resumed", 1), resume=True).folder
    assert lines_of(resumed) == lines_of(whole)
    assert checkpoint_of(resumed, 2).name == checkpoint_of(whole, 2).name
    assert [group["summed"] for line in lines_of(whole) for group in line["observed"]["secure_aggregation"]] == [True, True]


def test_the_weights_of_rows_are_inside_the_vector():
    coding = Coding(32, 3, 1.0, 50)
    masking = Masking(coding, 20, ("fc.bias",), 3)
    update, sent = {"fc.bias": torch.tensor([1.0, 0.5, 0.25])}, {"fc.bias": torch.tensor([0.5, 0.5, -0.5])}
    payload, clipped = masking.masked(update, sent, (0, 2), np.random.default_rng(0))
    values = unpacked(payload, 7, 32)
    assert coding.decoded(values[:3]).tolist() == pytest.approx([10.0, 0.0, 15.0], abs=2 * coding.step)
    assert values[3:].tolist() == [20, 20, 0, 20]
    assert clipped == 0
    assert len(payload) == 28


def test_a_masked_job_travels_between_processes():
    masking = Masking(Coding(24, 5, 0.5, 7), 3, ("fc.bias",), 10, bytes(range(33)))
    job = Job(1, 2, create("fedavg"), Tier(1.0), b"payload", masking=masking)
    (read,) = read_jobs(write_jobs([job], JobSetups()))
    assert read.masking == masking
    assert json.dumps(masking.row())


# What it combines with ---------------------------------------------------------------------------------------------------------


def test_methods_allow_it_whose_tiers_add_up():
    for name in methods.names():
        method = create(name)
        assert ("tier_sums" in method.gaps) == (not method.folds)
    assert create("fedhm").gaps["tier_sums"].endswith("the product of sums is not the sum of products")
    assert create("fedfomo").gaps["tier_sums"].startswith("clients of one tier receive sub-models of their own")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"method": "fedhm"},
            "secure_aggregation: secagg makes no sense with FedHM: the server multiplies each client's factors",
        ),
        ({"codec": "int8"}, "sends integers of 32 bits that add up, and what codec int8 sends does not; give codec fp32"),
        ({"objective": "dyn"}, "the server's half of dyn reads every update; give objective none or prox"),
        ({"mode": "async"}, "clients of a round agree on masks, and mode async has no rounds; give mode sync"),
        ({"defence": "median"}, "shows the server sums only, and defence median compares updates"),
        ({"outliers": True}, "shows the server sums only, and outliers compares updates"),
        ({"clip_norm": "adaptive"}, "clip_norm adaptive compares updates; leave it out, or give a fixed clip_norm"),
        ({"over_selection": 2.5}, "the server waits for 40% of the clients that it asks"),
        ({"secure_aggregation": "secagg:bits=8"}, "bits: 8 cannot carry the sum of 4 clients that weigh up to"),
    ],
)
def test_what_needs_every_update_is_refused(fleet, keys, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        small(fleet, **{"secure_aggregation": "secagg", **keys})


def test_a_policy_whose_sums_cannot_be_hidden_is_refused_by_its_label_before_any_is_simulated(fleet):
    begun = []
    config = small(fleet, per_round=6, secure_aggregation="secagg").config
    with pytest.raises(ConfigError, match=r"policy “2\.5 × asked”: secure_aggregation: secagg: the server waits for 40% of the"):
        whatif(config, over_selections=(1.3, 2.5), on_policy=begun.append)
    assert not begun


def test_a_fixed_clipping_norm_is_kept_by_clients(fleet, tmp_path):
    run = small(fleet, per_round=12, clip_norm=0.01, secure_aggregation="secagg:bound=0.1")
    state = run.start()
    after, _ = play(run, tmp_path, state)
    change = torch.cat([(after.model.tensors[n] - t).flatten() for n, t in state.model.tensors.items()])
    assert 0 < float(change.norm()) <= 0.01 * (1 + 1e-3)


def test_masks_without_the_package_cryptography_are_refused(fleet, monkeypatch):
    monkeypatch.setattr("edgefl.run.checks.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"masks need the package cryptography: pip install 'edgefl-sim\[sign\]'; or give masks=costed"
    ):
        small(fleet, secure_aggregation="secagg")
    assert replace(small(fleet, secure_aggregation="secagg:masks=costed").config.secure, masks="real").masks == "real"


def test_a_stage_takes_a_round_trip_and_its_bytes(tmp_path):
    run = small(write_fleet(tmp_path, {"board": 1.0}, "") if write_device(tmp_path, "board") else "")
    device = run.plan.classes[0].device
    assert stage_s(device, Stage("keys", 500, 2000), 0.5) == pytest.approx(0.05 + 500 / 0.25e6 + 2000 / 0.5e6)


def test_summary_and_report_say_what_became_of_the_groups(tmp_path):
    fleet = lossy(tmp_path, drop_out=0.2, interrupted=0.25)
    config = small(fleet, clients=60, per_round=30, rounds=2, secure_aggregation="secagg:group=6").config
    result = dry_run(config, tmp_path / "dry")
    (row,) = result.summary["secure_sums"]
    lines = [
        line for record in read_rounds(tmp_path / "dry" / "rounds.jsonl") for line in record["observed"]["secure_aggregation"]
    ]
    assert (row["groups"], row["summed"]) == (len(lines), sum(line["summed"] for line in lines))
    assert row["groups"] == 10 > row["summed"] > 0
    assert row["clients"] - row["lost"] == sum(line["vectors"] for line in lines)
    assert row["reasons"]
    page = (tmp_path / "dry" / "report.html").read_text(encoding="utf-8")
    assert "Secure sums" in page
    assert row["reasons"][0] in page
    plain = dry_run(small(fleet).config, tmp_path / "plain")
    assert "secure_sums" not in plain.summary
    assert "Secure sums" not in (tmp_path / "plain" / "report.html").read_text(encoding="utf-8")


def test_noise_of_clients_is_inside_the_masked_update(fleet, tmp_path):
    noisy = {"privacy": "local", "privacy_clip": 0.5, "noise_multiplier": 0.01}
    keys = {"per_round": 12, "secure_aggregation": "secagg"}
    quiet, _ = play(small(fleet, clip_norm=0.5, **keys), tmp_path)
    after, record = play(small(fleet, **keys, **noisy), tmp_path)
    assert record.useful.clients == 12
    assert any(not torch.equal(t, quiet.model.tensors[n]) for n, t in after.model.tensors.items())
