"""What secure aggregation combines with, and what it refuses because the server sees sums only."""

from __future__ import annotations

import pytest
from small_fleet import small

from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.methods.tier_sum import folds, gaps
from edgefl.registry import methods
from edgefl.run.whatif import whatif


def test_methods_allow_it_whose_tiers_add_up():
    for name in methods.names():
        method = create(name)
        assert ("tier_sums" in gaps(method)) == (not folds(method))
    assert gaps(create("fedhm"))["tier_sums"].endswith("the product of sums is not the sum of products")
    assert gaps(create("fedfomo"))["tier_sums"].startswith("clients of one tier receive sub-models of their own")


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
def test_what_needs_every_update_is_refused(two_links, keys, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        small(two_links, **{"secure_aggregation": "secagg", **keys})


def test_a_policy_whose_sums_cannot_be_hidden_is_refused_by_its_label_before_any_is_simulated(two_links):
    begun = []
    config = small(two_links, per_round=6, secure_aggregation="secagg").config
    with pytest.raises(ConfigError, match=r"policy “2\.5 × asked”: secure_aggregation: secagg: the server waits for 40% of the"):
        whatif(config, over_selections=(1.3, 2.5), on_policy=begun.append)
    assert not begun
