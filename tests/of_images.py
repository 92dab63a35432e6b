"""What networks that only tests have share: they read small images with one channel, as if they were networks of the package."""

from dataclasses import dataclass

from edgefl.models.base import Architecture


@dataclass(frozen=True)
class OfImages(Architecture):
    """A network for images of 8 × 8 pixels and four labels; a subclass has ``build``."""

    model: str = "of images"
    input_shape: tuple[int, ...] = (1, 8, 8)
    classes: int = 4
    vocabulary = 0
    labels = 1

    def __post_init__(self) -> None:
        """No registered network is looked up."""
