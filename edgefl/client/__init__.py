"""What happens on a client: the local loop, and the runtimes that run it."""
