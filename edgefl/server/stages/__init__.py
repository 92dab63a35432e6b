"""The stages of the server. Those with a half on clients are in :mod:`edgefl.client.stages`."""
