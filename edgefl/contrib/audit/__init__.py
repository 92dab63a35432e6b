"""The audit of a finished run: what its noise leaves to an attacker, or without noise what its model tells about its samples."""
