"""The device's half of the app. Flower starts a process for every message, so this file imports only what each message needs."""

import json
import os
import sys
import time
from pathlib import Path


def _age_s() -> float:
    """Return the seconds since this process began; 0 where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


STARTED_S = time.perf_counter() - _age_s()
sys.path.insert(0, str(Path(__file__).parent / "client"))  # edgefl's client for devices, which imports its own parts by name

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

from edgefl_app import device  # noqa: E402

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say what this device is, or store what it needs to train a tier."""
    return _answered(message, context, device.queried)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, and send the update."""
    return _answered(message, context, device.trained)


def _answered(message: Message, context: Context, answer: device.Handler) -> Message:
    fields = json.loads(str(message.content.config_records["edgefl"]["json"]))
    blobs = {name: array.data for name, array in message.content.array_records["blobs"].items()}
    owner = device.Owner.of(context.node_config, context.node_id)
    said, sent = answer(owner, fields, blobs, STARTED_S)
    arrays = {name: Array("uint8", (len(blob),), "edgefl.bytes", blob) for name, blob in sent.items()}
    content = RecordDict({"edgefl": ConfigRecord({"json": json.dumps(said)}), "blobs": ArrayRecord(arrays)})
    return Message(content, reply_to=message)
