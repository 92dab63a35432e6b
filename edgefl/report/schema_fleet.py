"""What a report needs to find of a run's fleet: refusals, steps of planning, work, participation; other keys are left alone."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Whole = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(ge=0)]


class Record(BaseModel):
    """An object of a run's files."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class Refusal(Record):
    """A budget that a tier does not meet on a device."""

    budget: str
    need: Number
    have: Number
    device: str
    tier: Number
    micro_batch: Whole | None = None


class Considered(Record):
    """A step of the planning: a tier, how it was to be taken, and the budgets that it does not meet."""

    tier: Number
    micro_batch: Whole | None
    refusals: list[Refusal]


class Work(Record):
    """What some clients' parts took together."""

    clients: Whole
    macs: Whole
    download_bytes: Whole
    upload_bytes: Whole
    energy_j: Number
    end_to_end_j: Number
    device_s: Number


class Group(Work):
    """What the clients of one device, tier and status took in a round."""

    device: str
    tier: Number | None
    status: str


class Participation(Record):
    """How a device class took part over all rounds."""

    device: str
    title: str
    share: Number
    clients: Whole
    sessions: Whole
    distinct: Whole
    statuses: dict[str, Whole]
    useful: Work
    wasted: Work
    tier: Number | None
    accuracy: Number | None


class Policy(Record):
    """What an assignment of tiers does to rounds and to inclusion by device class, in a dry run."""

    policy: str
    tiers: list[Number]
    round_s: Number | None
    useful_share: Number | None
    inclusion: dict[str, Number | None]
