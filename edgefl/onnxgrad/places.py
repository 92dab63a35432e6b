"""Where in someone's code an error was raised."""

import importlib.util
import linecache
import traceback
from pathlib import Path

_torch = importlib.util.find_spec("torch")
_INNER = ("<frozen", str(Path(__file__).parents[1]), *(_torch.submodule_search_locations or () if _torch else ()))


def place_of(error: BaseException) -> str:
    """Return the innermost line of ``error``'s traceback outside of torch and this package, as " (at FILE:LINE: CODE)"; "" if none.

    >>> place_of(ValueError("never raised"))
    ''
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_INNER)]
    if not frames or frames[-1].lineno is None:
        return ""
    line = linecache.getline(frames[-1].filename, frames[-1].lineno).strip()
    return f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno}: {line})"
