"""The key of secure aggregation."""

from typing import Annotated

from pydantic import AfterValidator

from edgefl.config.field import Keys, key
from edgefl.config.protocol import SecureAggregation

SECURE = "Secure aggregation"
"""Heading of this key in the command line's help."""


def _checked(text: str) -> str:
    SecureAggregation.of(text)
    return text


class SecureKeys(Keys):
    """The key of secure aggregation."""

    secure_aggregation: Annotated[str, AfterValidator(_checked)] = key(
        "off",
        SECURE,
        "Add up updates so that the server sees only sums of groups: off, secagg (Bonawitz 2017), or secagg+ (Bell 2020). Parameters "
        "follow a colon, as in secagg+:neighbours=20,group=50. The defaults are neighbours=20, group=100, least=3, threshold=0.5, bits=32, "
        "bound=1, stage_s=5, masks=real. masks=costed adds up without masks, to the same sums. [off]",
        "SPEC",
    )

    @property
    def secure(self) -> SecureAggregation | None:
        """What ``secure_aggregation`` says; None: off."""
        return SecureAggregation.of(self.secure_aggregation)
