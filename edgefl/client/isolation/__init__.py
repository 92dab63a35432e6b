"""Clients in processes of their own, limited to the memory of their devices and to processor time of this computer."""
