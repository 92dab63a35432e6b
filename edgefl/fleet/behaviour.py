"""Behaviour of devices: when they are eligible, how often sessions are lost, and what is left for training."""

from __future__ import annotations

from pydantic import Field, model_validator

from edgefl.fleet.figures import Figure, Hour, LostShare, Mark, Ratio, Record, Share


class Behaviour(Record):
    """What owners of devices and servers do to rounds.

    ``eligible_share``: mean share of the devices that are idle, charging and on an unmetered network. It swings over the day like a
    cosine, its highest to its lowest being ``day_night_ratio``, its highest at ``peak_hour`` (local). Of the sessions begun, the share
    ``drop_out`` is lost to errors or the network, ``interrupted`` to the owner in mid-training. ``response_sigma`` is the log-normal
    sigma of a session's computing time; servers ask ``over_selection`` times as many clients as they need.
    """

    eligible_share: Share
    day_night_ratio: Ratio
    peak_hour: Hour
    drop_out: LostShare
    interrupted: LostShare
    response_sigma: Figure
    over_selection: Ratio

    @model_validator(mode="after")
    def _possible(self) -> Behaviour:
        lost = self.drop_out.value + self.interrupted.value
        if lost >= 1:
            raise ValueError(f"drop_out and interrupted: expected shares that sum to less than 1, got {lost:g}")
        if self.eligible_peak > 1 + 1e-9:
            raise ValueError(
                "eligible_share and day_night_ratio: expected at most all devices at the peak, eligible_share x 2 ratio / (ratio + 1) "
                f"<= 1, got {self.eligible_peak:g}"
            )
        return self

    @property
    def eligible_peak(self) -> float:
        """The share of eligible devices at the peak hour: the mean times 2 ratio / (ratio + 1)."""
        return self.eligible_share.value * 2 * self.day_night_ratio.value / (self.day_night_ratio.value + 1)


class State(Record):
    """A state that a device is in with ``chance`` when it is asked, and the shares of its memory and speed that are left then."""

    name: str = Field(min_length=1)
    chance: float = Field(gt=0, le=1, strict=True)
    memory_share: float = Field(gt=0, le=1, strict=True)
    speed_share: float = Field(gt=0, le=1, strict=True)
    mark: Mark
    source: str = Field(min_length=10)
    note: str = ""
