"""The client's side of a round: jobs, the local training loop, objectives, and limits of memory and time."""
