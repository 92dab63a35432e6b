"""Rounds with real devices over Flower: the server's half. The devices' half is the app in ``export/flower``."""
