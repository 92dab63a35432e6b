"""The version of edgefl."""

__version__ = "0.2.0"
