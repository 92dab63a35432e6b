"""A round of FjORD against the derivation in fjord_by_hand.py."""

import fjord_by_hand as hand
import numpy as np
import pytest
from small_conv import assert_tensors, state_of, trained

from edgefl.methods.create import create
from edgefl.records import Tier

TIERS = (Tier(1.0), Tier(0.5))
# A draw below one half is the lower of A's two widths, no draw is its own; B has one width, whatever it draws.
DRAWS = {(0.5, 1.0): (0.2, 0.7), (1.0, 0.5): (0.5, 0.49), (1.0, 1.0): (0.99, 0.5), (0.5, 0.5): (0.0, 0.3)}
CASES = [(widths, draws, distill) for widths, draws in DRAWS.items() for distill in (False, True)]


@pytest.mark.parametrize(
    ("widths", "draws", "distill"), [*CASES, ((1.0, 1.0), (None, None), False), ((0.5, 0.5), (None, None), True)]
)
def test_a_round_is_ordered_dropout_and_an_average_over_the_holders(widths, draws, distill):
    method = create("fjord", {"distill": distill}, tiers=(1.0, 0.5))
    before = hand.start()
    state = state_of(method, TIERS, before)
    updates = [
        trained(method, state, 0, Tier(1.0), 0.4, 3, hand.LR, draws),
        trained(method, state, 1, Tier(0.5), 2.0, 5, hand.LR, (0.1, 0.9)),
    ]
    sent = {"A": hand.local(before, "A", widths, distill), "B": hand.local(before, "B", (0.5, 0.5), distill)}
    expected = hand.average(before, sent)
    assert_tensors(method.aggregate(state, updates).tensors, expected)
    outside = np.abs(expected["conv2.weight"][2:] - before["conv2.weight"][2:]).max()
    assert (outside > 1e-3) == (1.0 in widths or distill)


def test_entries_that_only_the_absent_wide_client_holds_keep_their_value():
    method = create("fjord", {}, tiers=(1.0, 0.5))
    before = hand.start()
    state = state_of(method, TIERS, before)
    update = trained(method, state, 1, Tier(0.5), 2.0, 5, hand.LR, (0.3,))
    expected = hand.average(before, {"B": hand.local(before, "B", (0.5,))})
    after = method.aggregate(state, [update]).tensors
    assert_tensors(after, expected)
    assert np.array_equal(after["fc.weight"][:, 8:].numpy(), before["fc.weight"][:, 8:].astype(np.float32))
