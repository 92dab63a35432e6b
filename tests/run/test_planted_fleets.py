"""Fleets whose best policy is known: what-if names it, also under constraints.

The figures of every policy are worked out here, as means over the draws, from the text of the fleet alone. Fleets in which two policies are
close are drawn again. ``--cases all`` asks 100 fleets; the count of right answers is in docs/fleet.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from small_fleet import write_device, write_fleet

from edgefl import RunConfig
from edgefl.report.policy_advice import for_speed
from edgefl.report.required import Goal
from edgefl.run.whatif import whatif

FEW, MANY = 5, 100
WANTED, CLIENTS, SAMPLES, ROUNDS, A_DAY = 12, 60, 60, 48, 24
BYTES = 1.01 * 4 * (64 * 256 + 256 + 256 * 10 + 10)
"""Of the network of 64, 256 and 10 units, with the header."""
MACS = 5 * SAMPLES * (2 * (64 * 256 + 256 * 10) + 256 * 10)
QUESTIONS = "fastest", "who takes part", "bytes of a month", "what nobody meets"


@dataclass(frozen=True)
class Planted:
    """Boards, and meters that are ``slower``; a share of the sessions is ``lost`` at any moment.

    Attributes:
        boards: their share of the clients.
        over: clients asked per wanted answer, in one half of the policies.
    """

    boards: float
    slower: float
    lost: float
    over: float

    @property
    def session_s(self) -> tuple[float, float]:
        """Seconds of a session of a board and of a meter."""
        fast, slow = (0.1 + 8 * BYTES * (1 / down + 1 / up) for down, up in (self.mbps(1.0), self.mbps(self.slower)))
        return fast + MACS / 0.5e9, slow + MACS / 0.5e9

    @staticmethod
    def mbps(slower: float) -> tuple[float, float]:
        """Bits a second, down and up."""
        return 8e6 / slower, 4e6 / slower

    @property
    def deadlines_s(self) -> tuple[float, float]:
        """One that only boards meet, and one for all."""
        fast, slow = self.session_s
        return round((fast * slow) ** 0.5, 3), round(3 * slow, 3)

    def policies(self) -> list[dict[str, float]]:
        """Return the mean figures of every policy, in the order of what-if."""
        return [self._figures(place, over) for place in range(2) for over in (1.0, self.over)]

    def _figures(self, everyone: int, over: float) -> dict[str, float]:
        asked, kept = np.ceil(round(WANTED * over, 6)), 1 - self.lost
        boards, meters = self.boards * kept * asked, everyone * (1 - self.boards) * kept * asked
        fast, slow = self.session_s
        used = min(WANTED, boards + meters)
        return {
            "updates": used / (slow if meters and boards < WANTED else fast),
            "meter": min(meters, max(0.0, WANTED - boards)) / ((1 - self.boards) * asked),
            "bytes": everyone * 30 * A_DAY * asked / CLIENTS * 2 * BYTES * (1 - self.lost / 2),
            "close": abs(boards - WANTED) / WANTED,
        }


def planted(rng: np.random.Generator) -> Planted:
    """Return a fleet in which no two policies are close."""
    while True:
        found = Planted(rng.uniform(0.4, 0.7), rng.uniform(4, 12), rng.uniform(0.05, 0.25), round(rng.uniform(1.3, 1.6), 1))
        of = found.policies()
        first, second = sorted((policy["updates"] for policy in of), reverse=True)[:2]
        close = min(policy["close"] for policy in of) < 0.2 or of[2]["meter"] < 1.5 * of[3]["meter"]
        if first > 1.3 * second and not close:
            return found


def right(seed: int, folder: Path) -> bool:
    """Whether the question of a seed is answered as the arithmetic says."""
    rng = np.random.default_rng(seed)
    fleet, question = planted(rng), QUESTIONS[seed % len(QUESTIONS)]
    for name, slower in (("board", 1.0), ("meter", fleet.slower)):
        down, up = fleet.mbps(slower)
        write_device(folder, name, download_mbps=down / 1e6, upload_mbps=up / 1e6)
    path = write_fleet(folder, {"board": fleet.boards, "meter": 1 - fleet.boards}, "", {"drop_out": fleet.lost})
    keys = {"rounds_per_day": float(A_DAY)} if question == "bytes of a month" else {}
    config = RunConfig(
        profile=path, model="mlp", method="fedavg", clients=CLIENTS, per_round=WANTED, rounds=ROUNDS, seed=seed,
        partition=f"index:{SAMPLES}", **keys,
    )  # fmt: skip
    of = fleet.policies()
    goal, best = asked(question, of)
    found = whatif(config, fleet.deadlines_s, (), (1.0, fleet.over), goal=goal)
    named = found.rows[best].label
    if question == "fastest":
        return bool(for_speed(found, found.rows).label == named)
    assert found.required is not None
    return (found.required.nearest if question == "what nobody meets" else found.required.taken) == named


def asked(question: str, of: list[dict[str, float]]) -> tuple[Goal, int]:
    """Return what is asked of the policies with these figures, and the place of the right answer."""
    best = max(range(4), key=lambda place: of[place]["meter"])
    between = 100 * (of[2]["meter"] * of[3]["meter"]) ** 0.5 if of[3]["meter"] else 50 * of[2]["meter"]
    most = (of[2]["bytes"] * of[3]["bytes"]) ** 0.5 / 1e6
    match question:
        case "fastest":
            return Goal(), max(range(4), key=lambda place: of[place]["updates"])
        case "who takes part":
            return Goal((f"meter >= {between:.1f} %",), "joules"), best
        case "bytes of a month":
            return Goal(("meter >= 1 %", f"bytes of meter <= {most:.2f}MB/month"), "round"), best
        case _:
            return Goal(("meter >= 99.5 %",), "waste"), best


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Ask a few fleets; many where all kinds are asked for."""
    if "seeds" in metafunc.fixturenames:
        metafunc.parametrize("seeds", [FEW if metafunc.config.getoption("--cases", "one") != "all" else MANY])


def test_the_known_best_policy_is_named(seeds, tmp_path):
    found = [right(seed, tmp_path) for seed in range(seeds)]
    wrong = [seed for seed, named in enumerate(found) if not named]
    assert len(wrong) <= 0.05 * seeds, f"wrong for the seeds {wrong}"


def test_the_count_in_the_docs_is_of_as_many_fleets():
    text = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")
    (count,) = re.findall(r"(\d+) of 100 fleets whose best policy is known", text)
    assert int(count) >= 95
