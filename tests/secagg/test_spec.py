"""What the key secure_aggregation may say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl import RunConfig
from edgefl.contrib.secagg.feature import secure_of
from edgefl.contrib.secagg.protocol import SecureAggregation
from edgefl.errors import ConfigError


def test_a_text_sets_what_it_names_and_leaves_the_rest():
    assert SecureAggregation.of("off") is None
    found = SecureAggregation.of("secagg+:neighbours=12,bits=24,threshold=0.6,bound=0.5,stage_s=2,masks=costed")
    assert found == SecureAggregation("secagg+", 12, 100, 3, 0.6, 24, 0.5, 2.0, "costed")
    assert secure_of(RunConfig(secure_aggregation="secagg:group=9")) == SecureAggregation(group=9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("on", "got on, expected off, secagg or secagg+"),
        ("off:bits=8", "got off:bits=8, expected off, secagg"),
        ("secagg:bit=8", "bit: secagg has no such parameter; did you mean bits"),
        ("secagg:neighbours=4", "neighbours: secagg makes all clients of a group neighbours; give secagg\\+"),
        ("secagg+:neighbours=5", "neighbours: got 5, expected an even number"),
        ("secagg:bits=8,bits=9", "bits: expected bits=VALUE, once"),
        ("secagg:bits", "bits: expected bits=VALUE, once"),
        ("secagg:bits=", "bits: got nothing, expected a whole number"),
        ("secagg:bits=40", "bits: got 40, expected 8 to 32"),
        ("secagg:bound=nan", "bound: got nan, expected a positive number"),
        ("secagg:bound=x", "bound: got x, expected a number"),
        ("secagg:threshold=1", "threshold: got 1, expected a share between 0 and 1"),
        ("secagg:least=1", "least: got 1, expected 2"),
        ("secagg:least=5,group=8", "group: got 8, expected 9 to 1000000, so that a tier can be divided"),
        ("secagg:masks=no", "masks: got no, expected real or costed"),
        ("secagg:", None),
    ],
)
def test_wrong_texts_say_what_is_expected(text, message):
    if message is None:
        assert SecureAggregation.of(text) == SecureAggregation()
        return
    with pytest.raises(ConfigError, match=f"secure_aggregation.*{message}"):
        RunConfig(secure_aggregation=text)


@given(st.integers(2, 20), st.integers(0, 40), st.integers(0, 300))
def test_groups_of_a_tier_are_as_equal_as_possible_and_never_too_small(least, more, clients):
    rules = SecureAggregation(least=least, group=2 * least - 1 + more)
    sizes = rules.sizes(clients)
    assert sum(sizes) == (clients if clients >= least else 0)
    assert not sizes or (max(sizes) <= rules.group and min(sizes) >= least and max(sizes) - min(sizes) <= 1)
