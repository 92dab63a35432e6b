"""Keys of the server's step, and the encoding of updates."""

from typing import Annotated

from pydantic import AfterValidator

from edgefl.config.field import Keys, Positive, check_name, key, known, known_call
from edgefl.errors import InputError
from edgefl.registry import codecs, server_optimizers, stages
from edgefl.util.spec import called

SERVER = "Server and codec"
"""Heading of these keys in the command line's help."""


def _known_optimizer(spec: str) -> str:
    try:
        name, options = called(spec)
    except ValueError:
        raise ValueError(f"expected NAME or NAME(option=value, …), such as adam(start=0), got {spec!r}") from None
    check_name(server_optimizers, name)
    try:
        if options:
            server_optimizers.load(name).of(options)
    except InputError as error:
        raise ValueError(f"{name}: {error}") from None
    return spec


def _stages(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        name = known_call(stages, text, "top-k(share=0.1)")
        if stages.plugin(name) is None:
            raise ValueError(f"{name} follows from other keys, such as codec and clip_norm; give stages of plug-ins")
    return texts


class ServerKeys(Keys):
    """Keys of the server's step, and the encoding of updates."""

    server_optimizer: Annotated[str, AfterValidator(_known_optimizer)] = key(
        "avg",
        SERVER,
        "How the server steps; avg takes the average as it is. Options: adam(start=0).",
        names=server_optimizers,
    )
    server_lr: Positive | None = key(None, SERVER, "Learning rate of the server. [1; adam and yogi: 0.01]")
    codec: Annotated[str, known(codecs)] = key("fp32", SERVER, "Encoding of the updates that clients send.", names=codecs)
    stages: Annotated[tuple[str, ...], AfterValidator(_stages)] = key(
        (), "", "Stages of plug-ins that updates pass before they are encoded, such as top-k(share=0.1).", "NAME(option=X)"
    )
