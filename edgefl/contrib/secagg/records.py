"""The records of secure aggregation in a run's files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgefl.registry import added_fields
from edgefl.report.added import SELDOM
from edgefl.report.results import Result
from edgefl.report.run_rows import Number


@dataclass(frozen=True)
class SecureSum(Result):
    """The secure sums of one tier over all rounds.

    Attributes:
        groups: how many groups were formed.
        summed: how many of their sums could be read.
        not_asked: rounds in which the tier had too few clients.
        clients: clients in groups.
        lost: those of them whose vector did not arrive.
        upload_bytes, download_bytes: of all messages but the masked vectors.
        agree_s, unmask_s: the mean seconds of a group's stages before the model is sent, and after its vectors have arrived.
        reasons: why other groups were not summed.
    """

    tier: float
    groups: int
    summed: int
    not_asked: int
    clients: int
    lost: int
    upload_bytes: int
    download_bytes: int
    agree_s: float
    unmask_s: float
    reasons: tuple[str, ...]


@added_fields("secure-sums", of="Summary")
@dataclass(frozen=True, kw_only=True)
class OfSums:
    """The secure sums by tier; empty if updates were sent plain."""

    secure_sums: tuple[SecureSum, ...] = field(default=(), metadata=SELDOM)


@dataclass(frozen=True)
class SecureWait:
    """How long a client waited for its group before the download and after the upload."""

    agree_s: Number | None
    unmask_s: Number | None


@added_fields("secure-wait", of="ClientLine")
@dataclass(frozen=True, kw_only=True)
class OfSession:
    """How long a client waited, if its update is added up securely."""

    secure: SecureWait | None = None

    @property
    def waits_s(self) -> tuple[Mapping[str, float | None], Mapping[str, float | None]]:
        """Seconds of the agreement on masks, and of unmasking."""
        if self.secure is None:
            return {}, {}
        return {"agreement": self.secure.agree_s}, {"unmasking": self.secure.unmask_s}
