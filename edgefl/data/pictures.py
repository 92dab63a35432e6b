"""One image: what its file says of it, and its pixels, upright and in units of 8 bits."""

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.errors import DataError, EdgeflError, first_line
from edgefl.records import DataRecord

_GREY = ("1", "L", "LA", "La", "F")
_TIFF_BITS, _TIFF_WHITE, _TIFF_FORMAT = 258, 262, 339
_UNSIGNED = 1


@dataclass(frozen=True)
class PixelFormat:
    """The pixels of an image, as its file describes them.

    Attributes:
        mode: Pillow's name of what is stored, such as RGB.
        bits: of a value in the file.
        frames: whether there is more than the first frame.
        white_is_zero: whether larger values are darker, where Pillow leaves them so.
    """

    mode: str
    bits: int
    frames: bool
    white_is_zero: bool

    @property
    def deep(self) -> bool:
        """Whether the pixels are grey values of more than 8 bits."""
        return self.mode.startswith("I")

    @property
    def grey(self) -> bool:
        """Whether a pixel is one value."""
        return self.deep or self.mode in _GREY

    def __str__(self) -> str:
        read = ", read as 8" if self.bits > 8 and not self.deep and self.mode != "F" else ""
        return f"{self.mode}, {self.bits} bit{'s' * (self.bits != 1)}{read}"


@dataclass(frozen=True)
class Form:
    """The form of all images of a data set: 1 or 3 ``channels`` of uint8, or float32 if some are ``floats`` or have more than 8 bits.

    ``alpha``: what becomes of transparent pixels, one of ``drop``, ``white``, ``black`` and ``only``; "": they are refused.
    """

    channels: int
    floats: bool
    alpha: str = ""


def look_at(content: bytes | Path, where: str) -> PixelFormat:
    """Return what the file of an image says; DataError if it is no image, or its values have no known largest one."""
    with _opened(content, where) as image:
        tags = getattr(image, "tag_v2", None) or {}
        deep = image.mode.startswith("I")
        raw = str(image.tile[0].args) if image.tile else ""
        bits = 32 if image.mode == "F" else 1 if image.mode == "1" else 16 if deep or ";16" in raw else 8
        if deep and image.format == "TIFF":
            bits = int(tags.get(_TIFF_BITS, (16,))[0])
            if bits > 16 or tags.get(_TIFF_FORMAT, (_UNSIGNED,))[0] != _UNSIGNED:
                remedy = "save them as 16 bits without a sign, or give an .npz of floats"
                raise DataError(f"{where}: integers of {bits} bits, of which it is not known what is white; {remedy}")
        return PixelFormat(image.mode, bits, getattr(image, "n_frames", 1) > 1, deep and tags.get(_TIFF_WHITE, 1) == 0)


def form_of(looks: Counter[PixelFormat], where: str, channels: int, alpha: str) -> Form:
    """Return what images that look so become: grey only if all are; DataError if some are floats and others are not."""
    floats = {look for look in looks if look.mode == "F"}
    if floats and len(looks) > len(floats):
        other = next(look for look in looks if look not in floats)
        raise DataError(f"{where}: images of floats beside images of {other}; give all the same type")
    channels = channels or (1 if alpha == "only" or all(look.grey for look in looks) else 3)
    return Form(channels, bool(floats) or any(look.deep for look in looks), alpha)


def record_of(looks: Counter[PixelFormat], form: Form) -> DataRecord:
    """Return what was read of images, and what was left out of them."""
    kinds = Counter[str]()
    for look, count in looks.items():
        kinds[str(look)] += count
    left = []
    if frames := sum(count for look, count in looks.items() if look.frames):
        left.append(f"frames after the first, of {frames:,} images")
    colours = sum(count for look, count in looks.items() if not look.grey)
    if form.channels == 1 and colours and form.alpha != "only":
        left.append(f"colours of {colours:,} images, as the training images are grey")
    if form.alpha:
        treatment = {"drop": "left out", "only": "the only channel that is read"}.get(form.alpha, f"painted on {form.alpha}")
        left.append(f"transparency: {treatment}, as alpha={form.alpha} says")
    return DataRecord(images=tuple(f"{kind}: {count:,}" for kind, count in kinds.items()), left_out=tuple(left))


def decoded(content: bytes | Path, where: str, look: PixelFormat, form: Form) -> np.ndarray:
    """Return an image upright, (channels, height, width) uint8, or float32 in units of 8 bits: 16 bits are divided by 257.

    DataError if it is damaged, or has transparent pixels and the form does not say what becomes of them.
    """
    with _opened(content, where) as opened:
        from PIL import ImageOps

        image = ImageOps.exif_transpose(opened)
        if look.mode == "F" or look.deep:
            values = np.asarray(image).astype(np.float64)
            if look.deep:
                white = 2**look.bits - 1
                values = (white - values if look.white_is_zero else values) * (255 / white)
            return np.broadcast_to(values.astype(np.float32), (form.channels, *values.shape))
        pixels = np.asarray(_opaque(image, form, where).convert("L" if form.channels == 1 else "RGB"))
    pixels = pixels.reshape(*pixels.shape[:2], form.channels).transpose(2, 0, 1)
    return pixels.astype(np.float32) if form.floats else pixels


def _opaque(image: Any, form: Form, where: str) -> Any:
    """Return an image without transparency; DataError if some pixels are transparent, and nobody said what they are."""
    if not image.has_transparency_data:
        return image
    from PIL import Image

    whole = image.convert("RGBA")
    opacity = whole.getchannel("A")
    if form.alpha == "only":
        return opacity
    if form.alpha == "drop" or opacity.getextrema()[0] == 255:
        return whole.convert("RGB")
    if not form.alpha:
        readings = (
            "alpha=drop reads the colours alone, alpha=white and alpha=black paint them on a ground, alpha=only reads the opacity"
        )
        raise DataError(f"{where}: has transparent pixels; say what they are after the path: --data PATH:alpha=drop; {readings}")
    return Image.alpha_composite(Image.new("RGBA", whole.size, form.alpha), whole)


@contextmanager
def _opened(content: bytes | Path, where: str) -> Iterator[Any]:
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{where}: reading images needs Pillow: pip install 'edgefl-sim[data]'") from None
    try:
        with Image.open(content if isinstance(content, Path) else io.BytesIO(content)) as image:
            yield image
    except EdgeflError:
        raise
    except Exception as error:  # noqa: BLE001 - a decoder raises anything when a file is damaged
        remedy = "; convert it to PNG or JPEG" if "cannot identify" in str(error) else ""
        raise DataError(f"{where}: no image that can be read ({first_line(error)}){remedy}") from None
