"""What secure aggregation costs: bytes of every message, round trips, waits and masks."""

from __future__ import annotations

import pytest
from secure_rounds import observed
from small_fleet import expected, play, small, write_device, write_fleet

from edgefl.contrib.secagg.grouping import groups_in
from edgefl.contrib.secagg.messages import stages, vector_bytes
from edgefl.errors import ConfigError
from edgefl.fleet.clock import trip_s
from edgefl.records import Added, RoundTrip, Tier
from edgefl.run.whatif import whatif


def test_a_tier_s_bytes_are_those_of_every_message(two_links):
    plain = small(two_links, per_round=6)
    run = small(two_links, per_round=6, secure_aggregation="secagg:bits=20")
    (before,), (cost,) = plain.plan.costs.values(), run.plan.costs.values()
    values = before.params + 1
    assert cost.model_bytes == (before.download_bytes, vector_bytes(values, 20))
    # Worked out by hand for five neighbours: 68·5 and 86·5 and 4·5 down, 64 and 86·5 and 37·6 up.
    assert cost.download_bytes - before.download_bytes == 340 + 430 + 20
    assert cost.upload_bytes - -(-values * 20 // 8) == 64 + 430 + 222
    assert cost.added.elementwise_bytes == 16 * 6 * values
    assert before.added == Added()


def test_a_session_has_three_more_round_trips_and_waits_for_the_slowest(two_links):
    plain = {e.client: e.timing for e in expected(small(two_links))}
    found = expected(small(two_links, secure_aggregation="secagg:masks=costed"))
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


def test_records_have_every_stage_and_wait_of_a_round(two_links):
    run = small(two_links, per_round=12, secure_aggregation="secagg")
    _, record = play(run)
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
    assert "secure" not in play(small(two_links, per_round=12))[1].clients[0].to_json()


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
        assert secured.train_s - bare.train_s == pytest.approx(cost.added.elementwise_bytes * per_byte)
        assert secured.agree_s == pytest.approx(sum(trip_s(of_class.device, trip) for trip in cost.added.before))
        assert secured.total_s > bare.total_s
    assert before.added == Added()


def test_budgets_include_the_messages(tmp_path):
    write_device(tmp_path, "board")
    plain = small(write_fleet(tmp_path, {"board": 1.0}), per_round=6)
    (cost,) = plain.plan.costs.values()
    tight = write_fleet(tmp_path, {"board": 1.0}, budget=f"download_bytes = {cost.download_bytes + 700}\n")
    assert small(tight, per_round=6).plan.classes[0].tier == Tier(1.0)
    with pytest.raises(Exception, match="download needs 77.9 kB, has 77.8 kB"):
        small(tight, per_round=6, secure_aggregation="secagg")
    assert small(tight, per_round=5, secure_aggregation="secagg").plan.classes[0].tier == Tier(1.0)


def test_whatif_shows_what_it_costs(two_links):
    def rows(**keys):
        return whatif(small(two_links, **keys).config, over_selections=(1.0,)).rows[0]

    masked, plain = rows(secure_aggregation="secagg", per_round=6), rows(per_round=6)
    assert masked.round_s > plain.round_s + 3 * 0.2
    swept = whatif(small(two_links, per_round=6).config, vary={"secure_aggregation": ("off", "secagg")}).rows
    assert [(row.label, row.round_s) for row in swept] == [
        ("secure aggregation off", plain.round_s),
        ("secure aggregation secagg", masked.round_s),
    ]
    with pytest.raises(ConfigError, match="secure_aggregation"):
        whatif(small(two_links, method="fedhm").config, vary={"secure_aggregation": ("off", "secagg")})


def test_a_stage_takes_a_round_trip_and_its_bytes(tmp_path):
    run = small(write_fleet(tmp_path, {"board": 1.0}, "") if write_device(tmp_path, "board") else "")
    device = run.plan.classes[0].device
    assert trip_s(device, RoundTrip("keys", 500, 2000), 0.5) == pytest.approx(0.05 + 500 / 0.25e6 + 2000 / 0.5e6)
