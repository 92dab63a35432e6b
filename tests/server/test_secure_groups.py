"""Groups of secure aggregation: who is in one, who is lost, and what becomes of its sum."""

from __future__ import annotations

import pytest
import torch
from secure_rounds import lossy, observed
from small_fleet import expected, play, small, write_device, write_fleet

from edgefl.contrib.secagg.grouping import groups_in
from edgefl.report.run_files import read_rounds
from edgefl.run.dry_run import dry_run
from edgefl.run.trained import without_training


def tiered(fleet, **keys):
    keys = {"method": "heterofl", "tiers": (1.0, 0.5), "tier_assignment": "uniform", **keys}
    return small(fleet, **keys)


def test_only_clients_of_one_tier_and_round_are_grouped(two_links):
    run = tiered(two_links, clients=40, per_round=40, secure_aggregation="secagg:group=7")
    found = expected(run, range(40))
    assert len(groups_in(found)) >= 6
    for (tier, _), members in groups_in(found).items():
        assert {m.tier for m in members} == {tier}
        assert 3 <= len(members) <= 7
    again = {key: [m.client for m in members] for key, members in groups_in(expected(run, range(40), turn=2)).items()}
    assert again != {key: [m.client for m in members] for key, members in groups_in(found).items()}


def test_a_tier_with_too_few_clients_is_not_asked(two_links):
    run = tiered(two_links, per_round=12, tier_shares=(0.1, 0.9), secure_aggregation="secagg:least=4,group=12")
    _, record = play(run)
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


def test_lost_clients_are_recovered_from_or_fail_their_group(tmp_path):
    fleet = lossy(tmp_path, drop_out=0.2, interrupted=0.25)
    run = small(fleet, clients=60, per_round=60, secure_aggregation="secagg:group=6,masks=real")
    after, record = play(run)
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
    after, record = play(run, state)
    assert not any(line["summed"] for line in observed(record))
    assert all(torch.equal(after.model.tensors[name], tensor) for name, tensor in state.model.tensors.items())


def test_summary_and_report_say_what_became_of_the_groups(tmp_path):
    fleet = lossy(tmp_path, drop_out=0.2, interrupted=0.25)
    config = small(fleet, clients=60, per_round=30, rounds=2, secure_aggregation="secagg:group=6").config
    result = dry_run(config, tmp_path / "dry")
    (row,) = result.summary["secure_sums"]
    lines = [line for record in read_rounds(tmp_path / "dry" / "rounds.jsonl") for line in record.observed["secure_aggregation"]]
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
