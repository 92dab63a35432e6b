"""The server's part: rounds, evaluation and checkpoints."""
