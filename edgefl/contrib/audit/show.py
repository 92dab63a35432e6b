"""An audit in words."""

from edgefl.contrib.audit.audit import Audit
from edgefl.contrib.audit.membership import Membership
from edgefl.report.tables import PlainTable
from edgefl.util.units import human_percent


def leaks_table(audit: Audit) -> PlainTable:
    """Return a row for each attacker: ε as measured, its interval, and as accounted."""
    heads = ("attacker", "releases", "empirical ε (at least)", "most likely", "at most", "accounted ε", "δ")
    rows = (
        (
            leak.attacker,
            str(leak.releases),
            *(f"{value:.4g}" for value in (leak.empirical, leak.most_likely, leak.upper, leak.accounted)),
            f"{leak.delta:g}",
        )
        for leak in audit.leaks
    )
    return PlainTable.of_texts(heads, rows, heads[1:])


def verdict(audit: Audit) -> str:
    """Return what the rows say: a line for each attacker, and one for all."""
    lines = [
        f"to an attacker who {leak.attacker} the run leaks at least ε = {leak.empirical:.4g} (99 % interval up to {leak.upper:.4g}; "
        f"most likely {leak.most_likely:.4g}; accounted {leak.accounted:.4g})"
        for leak in audit.leaks
    ]
    agrees = f"{audit.canaries} canaries, privacy {audit.level}: no more is leaked than is accounted"
    exceeds = "more is leaked than is accounted: the run's noise or clipping is not what it should be"
    return "\n".join([*lines, exceeds if audit.exceeds else agrees])


def membership_text(attack: Membership) -> str:
    """Return what a membership attack reaches, in lines."""
    right = f"it guesses {human_percent(attack.right)} right; 50 % by chance"
    shares = f"{human_percent(attack.told)} of {attack.members:,} members and {human_percent(attack.mistaken)} of {attack.others:,} others"
    return "\n".join(
        (
            "no privacy: a membership attack on the final model, by the losses of samples",
            f"{right} (AUC {attack.auc:.3f})",
            f"it takes {shares} for members",
            f"no training with ε below {attack.epsilon_low:.2f} allows that (99 % confidence)",
        )
    )
