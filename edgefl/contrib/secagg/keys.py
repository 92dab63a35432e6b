"""The key of secure aggregation."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator

from edgefl.config.field import Keys, key
from edgefl.config.group import CoreKeys, KeyGroup, group_keys
from edgefl.contrib.secagg.protocol import SecureAggregation
from edgefl.registry import key_group


def _checked(text: str) -> str:
    SecureAggregation.of(text)
    return text


class SecureKeys(Keys):
    """The key of secure aggregation."""

    secure_aggregation: Annotated[str, AfterValidator(_checked)] = key(
        "off",
        "Secure aggregation",
        "Add up updates so that the server sees only sums of groups: off, secagg (Bonawitz 2017), or secagg+ (Bell 2020). Parameters "
        "follow a colon, as in secagg+:neighbours=20,group=50. The defaults are neighbours=20, group=100, least=3, threshold=0.5, bits=32, "
        "bound=1, stage_s=5, masks=real. masks=costed adds up without masks, to the same sums. [off]",
        "SPEC",
    )


@key_group(
    "secure-sums",
    after="TrustKeys",
    place=1,
    needs={"secure_aggregation": {"off": (), "secagg": ("tier_sums",), "secagg+": ("tier_sums",)}},
    titles={"secure_aggregation": "secure sums"},
    of_policies=("secure_aggregation",),
)
class SecureGroup(KeyGroup):
    """The key of secure aggregation."""

    keys = SecureKeys

    @staticmethod
    def problems(config: CoreKeys) -> Iterator[str]:
        """Yield a message if there are no rounds whose clients could agree on masks."""
        if group_keys(config, SecureKeys).secure_aggregation != "off" and config.mode == "async":
            yield "secure_aggregation: clients of a round agree on masks, and mode async has no rounds; give mode sync"
