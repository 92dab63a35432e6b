"""A few seeded cases of the attacks that ``tools/attack.py --minutes N`` plays for longer.

One process starts all commands. The other kinds take half a minute a case.
"""

from __future__ import annotations

from tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

KINDS, CASES = ("bundles", "settings", "updates"), 4


def test_no_attack_succeeds(tmp_path):
    found = tool_of("attack").attack(KINDS, seed=5, home=tmp_path, seconds=600, cases=CASES)
    assert {one.kind: one.failures for one in found} == {kind: [] for kind in KINDS}
    assert [one.number for one in found] == [CASES] * len(KINDS)
