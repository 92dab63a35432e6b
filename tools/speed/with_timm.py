"""edgefl's command line in a process that can import timm without torchvision.

Usage: python -m speed.with_timm COMMAND …      (in the folder of the tools)
"""

import importlib.util

from clock.networks import stand_in

from edgefl.cli.main import main

if __name__ == "__main__":
    if importlib.util.find_spec("torchvision") is None:
        stand_in()
    main()
