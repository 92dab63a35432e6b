"""The file of a bundle by which devices refuse an older one: its line of rounds, and when it expires."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from edgefl.util.files import json_bytes, sha256

FRESHNESS = "freshness.json"


def freshness_file(line: Mapping[str, Any], lasts_s: float | None) -> dict[str, bytes]:
    r"""Return the file of a bundle of the rounds that ``line`` identifies, which expires ``lasts_s`` seconds from now; None: never.

    >>> freshness_file({"seed": 1}, None)["freshness.json"].decode().replace("\n", "")[:32]
    '{  "line": "d75dbf5be74bd7e00a5f'
    """
    end = None if lasts_s is None else (datetime.now(UTC) + timedelta(seconds=lasts_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    values = {"line": sha256(json_bytes(dict(sorted(line.items()))))} | ({} if end is None else {"expires": end})
    return {FRESHNESS: json_bytes(values)}
