"""The population of a fleet: how many clients of each class, who is which, and which tier each takes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgefl.fleet.load import load_fleet
from edgefl.fleet.population import Population


@given(st.integers(1, 500), st.sampled_from(["phone", "phone-flash-2020", "home", "mixed"]))
def test_class_counts_follow_the_shares(clients, name):
    fleet = load_fleet(name)
    counts = Population(fleet, clients, 0).class_counts()
    assert sum(counts) == clients
    if clients >= len(counts):
        assert min(counts) >= 1
    for count, c in zip(counts, fleet.classes, strict=True):
        assert abs(count - c.share * clients) <= len(counts)


def test_the_seed_decides_who_is_which():
    fleet = load_fleet("phone")
    one, again, other = (Population(fleet, 20, seed) for seed in (1, 1, 2))
    classes = [[int(p.classes(np.array([i]))[0]) for i in range(20)] for p in (one, again, other)]
    assert classes[0] == classes[1] != classes[2]
    assert [classes[0].count(i) for i in range(3)] == [3, 10, 7]


def test_assignment_policies():
    population = Population(load_fleet("phone"), 20, 0)
    clients = np.arange(20)
    options = np.array([3, 2, 0])[population.classes(clients)]  # tiers that fit a client's class, the largest first
    drawn = {
        p: np.array([population.tiers(p, options, clients, r) for r in range(1, 30)]) for p in ("auto", "uniform", "dynamic")
    }
    for client, able in enumerate(options):
        assert set(drawn["auto"][:, client]) == {0 if able else -1}
        assert len(set(drawn["uniform"][:, client])) == 1
        assert set(drawn["uniform"][:, client]) <= (set(range(able)) or {-1})
        assert set(drawn["dynamic"][:, client]) == (set(range(able)) or {-1})
