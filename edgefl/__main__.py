"""``python -m edgefl``: the command line."""

import os
import sys

# Python puts the working directory first, where a file could take the place of a library. It stays if the package lies there.
_home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120 - pathlib is not imported yet
if sys.path[:1] == [os.getcwd()] and os.path.realpath(sys.path[0]) != _home:  # noqa: PTH109
    del sys.path[0]

from edgefl.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
