"""Messages between the server and devices over Flower: a JSON text and blobs of bytes, which Flower carries as they are."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from edgefl.errors import first_line
from edgefl.wire.message import MessageFields

Kind = Literal["query", "train"]
"""Flower's type of a message: a question that the device answers at once, or a job."""
_TEXT, _BLOBS, _JSON = "edgefl", "blobs", "json"
_SERIAL = "edgefl.bytes"


@dataclass(frozen=True)
class Reply:
    """A device's answer: JSON ``fields`` and ``blobs``. If there is none, ``error`` says why.

    ``gone``: there is none because the node sent no more signs of life, as one without power or network.
    """

    fields: MessageFields = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    error: str = ""
    gone: bool = False


class FlowerLink(Protocol):
    """Sends messages to the nodes of a federation, and collects their answers."""

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""

    def send(self, node: int, kind: Kind, fields: MessageFields, blobs: Mapping[str, bytes], ttl_s: float) -> str:
        """Send a message whose answer is worth ``ttl_s`` seconds of waiting; return its number."""

    def replies(self, sent: Collection[str]) -> dict[str, Reply]:
        """Return number → answer of the messages ``sent`` that have been answered since the last call."""


class GridLink:
    """The link of a ServerApp, over Flower's ``Grid``."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self._grid.get_node_ids())

    def send(self, node: int, kind: Kind, fields: MessageFields, blobs: Mapping[str, bytes], ttl_s: float) -> str:
        """Send a message; an empty number stands for one that Flower did not accept."""
        message = Message(packed(fields, blobs), dst_node_id=node, message_type=kind, ttl=ttl_s)
        return next(iter(self._grid.push_messages([message])), None) or ""

    def replies(self, sent: Collection[str]) -> dict[str, Reply]:
        """Return number → answer of the messages that have been answered."""
        messages = self._grid.pull_messages(sent) if sent else ()
        return {message.metadata.reply_to_message_id: _reply(message) for message in messages}


def packed(fields: MessageFields, blobs: Mapping[str, bytes]) -> RecordDict:
    """Return the content of a message."""
    arrays = {name: Array("uint8", (len(blob),), _SERIAL, bytes(blob)) for name, blob in blobs.items()}
    return RecordDict({_TEXT: ConfigRecord({_JSON: json.dumps(fields)}), _BLOBS: ArrayRecord(arrays)})


def _reply(message: Message) -> Reply:
    if message.has_error():
        lines = (message.error.reason or "").strip().splitlines()
        problem = f"Flower's error {message.error.code}{f', {lines[-1]}' if lines else ''}"
        return Reply(error=problem, gone=message.error.code == ErrorCode.NODE_UNAVAILABLE)
    try:
        fields = json.loads(str(message.content.config_records[_TEXT][_JSON]))
        blobs = {name: array.data for name, array in message.content.array_records[_BLOBS].items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:  # a node may send anything
        return Reply(error=f"a message that is not of edgefl's app ({type(error).__name__}: {first_line(error)})")
    return Reply(fields, blobs) if isinstance(fields, dict) else Reply(error="a message without fields")
