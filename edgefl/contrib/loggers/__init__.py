"""Loggers that need a package of their own."""
