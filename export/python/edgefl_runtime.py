"""onnxruntime without its telemetry: from 1.29 on, its packages send figures of models and of the device to their maker unless told not to.

It reads the variable when it is imported. ``ORT_DISABLE_TELEMETRY=0`` in the environment allows telemetry.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["ort"]
