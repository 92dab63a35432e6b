"""What secure aggregation adds to the costs of a tier: the bytes of its messages, and the values of its masks."""

from dataclasses import replace

from edgefl.client.masking import values_of
from edgefl.methods.base import Method
from edgefl.models.base import Architecture
from edgefl.records import Cost, Secure, Stage, Tier
from edgefl.secagg.messages import stages, vector_bytes
from edgefl.secagg.spec import SecureAggregation


def secured(
    cost: Cost, method: Method, architecture: Architecture, tier: Tier, rules: SecureAggregation | None, clients: int
) -> Cost:
    """Return the cost of a tier if its updates are added up securely, in the largest groups that ``clients`` clients can form.

    The masked vector replaces the encoded update. ``rules`` None: the same cost.
    """
    if rules is None:
        return cost
    values = masked_values(method, architecture, tier)
    neighbours = max(1, rules.neighbours_in(min(rules.group, clients)))
    *agreement, unmasking = (Stage(*stage) for stage in stages(neighbours, neighbours, neighbours))
    secure = Secure(tuple(agreement), unmasking, (neighbours + 1) * values)
    sent = sum(stage.upload_bytes for stage in secure.stages) + vector_bytes(values, rules.bits)
    received = sum(stage.download_bytes for stage in secure.stages)
    return replace(cost, upload_bytes=sent, download_bytes=cost.download_bytes + received, secure=secure)


def masked_values(method: Method, architecture: Architecture, tier: Tier) -> int:
    """Return how many values the masked vector of a tier has."""
    shapes = method.upload_shapes(architecture, tier)
    classes = architecture.classes if method.label_rows(architecture) & shapes.keys() else 0
    return values_of(shapes.values(), classes)
