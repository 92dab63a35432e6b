"""One page of every kind, from hand-made records."""

from functools import cache

from compared import two
from test_cost_report import on_devices
from test_fleet_report import dry, whatif
from test_report import make_rounds, make_summary

from edgefl.report import html, whatif_page
from edgefl.report.compare_page import compare_page
from edgefl.report.comparison_budget import RunBudget
from edgefl.report.cost_page import cost_page
from edgefl.report.dry_page import render_dry

KINDS = ("run", "dry-run", "what-if", "costs", "compare", "budget")


@cache
def made_pages() -> dict[str, str]:
    """Return name → page."""
    return {
        "run": html.render(make_summary(), make_rounds()),
        "dry-run": render_dry(*dry()),
        "what-if": whatif_page.render(whatif()),
        "costs": cost_page(on_devices()),
        "compare": compare_page(two()),
        "budget": compare_page(two(budget=RunBudget(s=5), target_accuracy=0.8)),
    }
