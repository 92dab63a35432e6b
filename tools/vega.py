"""Writes edgefl/report/vega.packed: Vega, Vega-Lite and Vega-Embed as vl-convert bundles them, which every page contains.

Usage: python tools/vega.py     in an environment with the tested version of vl-convert-python

After a change of version, renew the licences in edgefl/report/vega-licence.md, too.
"""

import base64
import zlib
from pathlib import Path

import vl_convert

PACKED = Path(__file__).resolve().parent.parent / "edgefl/report/vega.packed"


def versions() -> str:
    """Return the versions of the parts, as pages name them."""
    found = vl_convert.get_vega_version(), vl_convert.get_vegalite_versions()[-1], vl_convert.get_vega_embed_version()
    return "Vega {}, Vega-Lite {} and Vega-Embed {}".format(*found)


if __name__ == "__main__":
    bundle = vl_convert.javascript_bundle(None)  # type: ignore[arg-type]  # the stub wants a snippet
    packed = base64.b64encode(zlib.compress(bundle.encode(), 9)).decode()
    PACKED.write_text(f"{versions()}\n{packed}", encoding="utf-8")
