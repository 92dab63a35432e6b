"""The adversaries: simulated clients that attack a run."""
