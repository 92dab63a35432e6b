"""The text about a simulated attack on the page of a run."""

from collections.abc import Callable, Sequence

from edgefl.contrib.attacks.records import AttackRow, OfAttack, OfRound
from edgefl.records import Screened
from edgefl.registry import section
from edgefl.report.added import added
from edgefl.report.outliers import FAR
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import AnySummary
from edgefl.report.section import Section


@section("attack", place=0)
def attack_section(summary: AnySummary, rounds: Sequence[RoundLine]) -> Section | None:
    """Return who attacks, and what to compare the run with; None if every client is honest."""
    if (attack := added(summary, OfAttack).attack) is None:
        return None
    more = f" and {attack.count - len(attack.clients):,} more" if attack.count > len(attack.clients) else ""
    who = f"{attack.count:,} of {summary.clients:,} clients: {', '.join(map(str, attack.clients))}{more}"
    return Section(facts=(("adversaries", f"{attack.adversary}, {who}"),), advice=_advice(attack, summary.clients, rounds))


def _advice(attack: AttackRow, clients: int, rounds: Sequence[RoundLine]) -> str:
    """Return what a defence has left out of the attack, or what norm-filter would have, or the advice to try one."""
    screenings = [
        (client.client in added(line, OfRound).adversaries, client.screened)
        for line in rounds
        for client in line.clients
        if client.screened is not None
    ]
    attackers = f"{attack.count:,} of {clients:,} clients attacked"
    if any(screened.dropped for _, screened in screenings):
        return f"Compare this run with an honest one: {attackers}, and the defence left out {_left_out(screenings, lambda of: of.dropped)}."
    if any(screened.norm_ratio is not None for _, screened in screenings):
        would = _left_out(screenings, lambda of: (of.norm_ratio or 0.0) > FAR)
        return f"Compare this run with one with --defence norm-filter: {attackers}, and the filter would have left out {would}."
    return f"Compare this run with an honest one and with --defence: {attackers}, and no update was left out."


def _left_out(screenings: Sequence[tuple[bool, Screened]], out: Callable[[Screened], bool]) -> str:
    """Return how many updates of attackers and of others are ``out``."""
    counts = [[out(screened) for hostile, screened in screenings if hostile is of] for of in (True, False)]
    hostile, honest = (f"{sum(outs):,} of {len(outs):,}" for outs in counts)
    return f"{hostile} hostile updates and {honest} others"
