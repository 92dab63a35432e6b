"""Engines, which train clients in this process, in workers or in a process for each client, alone or several of a tier together."""
