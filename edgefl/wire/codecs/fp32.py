"""fp32: values travel as they are."""

from typing import ClassVar

from edgefl.registry import codec
from edgefl.wire.codec import Codec, Part, Shape


@codec("fp32")
class FP32(Codec):
    """Tensors as they are."""

    raw: ClassVar[bool] = True

    def parts(self, name: str, shape: Shape, count: int | None = None) -> tuple[Part, ...]:
        return (Part(name, "F32", shape),)
