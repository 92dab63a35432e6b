"""Keys of rounds and evaluation."""

from edgefl.config.field import Count, Keys, key

ROUNDS = "Rounds and evaluation"
"""Heading of these keys in the command line's help."""


class RoundsKeys(Keys):
    """Keys of rounds and evaluation."""

    rounds: Count = key(30, ROUNDS, "Number of rounds; with --mode async, of server steps.")
    per_round: Count | None = key(
        None, ROUNDS, "Updates wanted per round; with --mode async, clients that train at a time. [half of --clients]"
    )
    eval_every: Count = key(1, ROUNDS, "Evaluate every N rounds, and after the last one.")
    eval_samples: Count | None = key(
        None, ROUNDS, "Held-out samples to evaluate on, drawn by the seed. [all after the last round, 1,000 before]"
    )
    eval_after_training: bool | None = key(
        None,
        ROUNDS,
        "In evaluated rounds, also evaluate each client's model right after its local training. [if clients have models of their own]",
    )
    seed: int = key(0, ROUNDS, "Seed of every random draw.", ge=0)
