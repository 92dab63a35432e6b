"""The kind of part that a simulated attack is."""

from edgefl.registry import CONTRIB, Registry
from edgefl.util.interface import Interface

adversary = adversaries = KIND = Registry(
    "adversary",
    CONTRIB,
    Interface(f"{CONTRIB}.attacks.adversary:Adversary", facts=("needs",)),
    "adversaries",
    shared=True,
)
