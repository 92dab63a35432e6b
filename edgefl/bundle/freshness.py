"""The file of a bundle by which devices refuse an older one: its line of rounds, and when it expires."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from edgefl.util.files import json_bytes, sha256

FRESHNESS = "freshness.json"
_CENTURY_S = 100 * 365 * 86_400.0
"""No bundle lasts longer: dates have an end."""


def freshness_file(line: Mapping[str, Any], lasts_s: float | None) -> dict[str, bytes]:
    """Return the file of a bundle of the rounds that ``line`` identifies, which expires ``lasts_s`` seconds from now; None: never.

    >>> file = json.loads(freshness_file({"seed": 1, "lr": float("inf")}, 60.0)["freshness.json"])
    >>> len(file["line"]), len(file["expires"])
    (64, 20)
    """
    values = {"line": sha256(json.dumps(line, sort_keys=True).encode())}
    if lasts_s is not None:
        end = datetime.now(UTC) + timedelta(seconds=min(lasts_s, _CENTURY_S))
        values["expires"] = end.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {FRESHNESS: json_bytes(values)}
