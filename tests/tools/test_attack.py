"""A few seeded cases of the attacks that ``tools/attack.py --minutes N`` plays for longer.

One process starts all commands. The other kinds take half a minute a case, or build another program first.
"""

from __future__ import annotations

from tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

KINDS, CASES = ("bundles", "settings", "updates"), 4


def test_no_attack_succeeds(tmp_path):
    found = tool_of("attack").attack(KINDS, seed=5, home=tmp_path, seconds=600, cases=CASES)
    assert {one.kind: one.failures for one in found} == {kind: [] for kind in KINDS}
    assert [one.number for one in found] == [CASES] * len(KINDS)


def test_a_kind_that_needs_what_this_computer_lacks_is_left_out_by_name(tmp_path, monkeypatch):
    tool = tool_of("attack")
    monkeypatch.setenv("PATH", "")
    one = tool.Attack("node", 0, tool.Bench(tmp_path / "shared", None, None))
    one.play()
    assert (one.number, one.failures, one.lacks) == (0, [], "needs node")
    assert tool.table([one]).splitlines()[0].endswith("; left out: needs node")
