"""``python -m edgefl``: the command line."""

from edgefl.cli.main import main

if __name__ == "__main__":
    main()
