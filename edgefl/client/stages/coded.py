"""coded: an update travels as its codec packs it."""

from dataclasses import dataclass, replace
from typing import Any

from edgefl.client.stage import AtClient, Leaving, Stage, StagePlace, Turn
from edgefl.records import Update
from edgefl.registry import stage
from edgefl.timing.spans import span
from edgefl.wire.codec import codec_named
from edgefl.wire.payload import decode, encode


@stage("coded")
@dataclass(frozen=True)
class Coded(Stage):
    """The last stage of a client, and the first of the server.

    Attributes:
        codec: name of the codec.
    """

    codec: str = "fp32"

    place = StagePlace.DECODED

    def leave(self, leaving: Leaving, at: AtClient) -> Leaving:
        """Encode the update."""
        rounding = at.rng("codec") if codec_named(self.codec).draws else None
        return replace(leaving, payload=encode(leaving.tensors, self.codec, rounding))

    def opened(self, update: Update, shapes: Any) -> Update:
        """Return an update with the tensors of its payload; WireError, which names the client, if it is damaged or has others."""
        tensors = decode(update.payload, shapes, f"client {update.client}", self.codec, copy=False)
        return replace(update, tensors=tensors, payload=b"")

    @property
    def folds(self) -> bool:
        """True: whoever adds an update up has opened it."""
        return True

    def admit(self, update: Update, turn: Turn) -> Update:
        """Decode the update, and check its values."""
        if not update.payload:
            return update
        with span("decode", client=update.client):
            update = self.opened(update, turn.shapes(update.tier))
        turn.check(update.tensors, f"client {update.client}")
        return update


PLAIN = Coded()
"""Updates travel as float32."""
