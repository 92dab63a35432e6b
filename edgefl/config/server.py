"""Keys of the server's step, and the encoding of updates."""

from typing import Annotated

from edgefl.config.field import Keys, Positive, key, known
from edgefl.registry import codecs, server_optimizers

SERVER = "Server and codec"
"""Heading of these keys in the command line's help."""


class ServerKeys(Keys):
    """Keys of the server's step, and the encoding of updates."""

    server_optimizer: Annotated[str, known(server_optimizers)] = key(
        "avg", SERVER, "How the server steps; avg takes the average as it is.", names=server_optimizers
    )
    server_lr: Positive | None = key(None, SERVER, "Learning rate of the server. [1; adam and yogi: 0.01]")
    codec: Annotated[str, known(codecs)] = key("fp32", SERVER, "Encoding of the updates that clients send.", names=codecs)
