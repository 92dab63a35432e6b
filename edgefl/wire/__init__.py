"""Payloads, codecs and update files: the only place where bytes are counted."""
