"""Sessions that end early: what a client has computed and sent by then."""

from dataclasses import dataclass, replace

from edgefl.fleet.clock import with_joules
from edgefl.records import Expected, Foreseen, Timing
from edgefl.server.assignment import ClassPlan


@dataclass(frozen=True)
class Session:
    """A session as the conditions of a run have it.

    Attributes:
        of_class: the class of its device, in the device's state of the round.
        whole: the session without losses.
        end_s: when it is lost, in seconds after its start; only if ``status`` is not "expected".
        status: how it ends.
        until_s: when its device stops being eligible, in seconds after its start.
        link: its share of the link's typical rate.
        model_bytes: bytes down and up of the model and of its update, without other messages.
    """

    of_class: ClassPlan
    whole: Expected
    end_s: float = 0.0
    status: Foreseen = "expected"
    until_s: float = float("inf")
    link: float = 1.0
    model_bytes: tuple[int, int] = (0, 0)

    def ended(self) -> Expected:
        """Return what is expected of the client: the session until its end."""
        return self.whole if self.status == "expected" else cut(self.of_class, self.whole, self.end_s, self.status)


def cut(of_class: ClassPlan, whole: Expected, end_s: float, status: Foreseen) -> Expected:
    """Return a session that ends ``end_s`` seconds after its start, with the work, bytes and joules until then."""
    timing = whole.timing
    assert timing is not None
    agree_s = min(timing.agree_s, end_s)
    left_s = max(end_s - timing.agree_s, 0.0)
    down_s = min(timing.download_s, left_s)
    train_s = min(max(left_s - timing.download_s, 0.0), timing.train_s)
    up_s = min(max(left_s - timing.download_s - timing.train_s, 0.0), timing.upload_s)
    return _took(of_class, whole, (down_s, train_s, up_s), status, agree_s)


def failed_after(of_class: ClassPlan, whole: Expected, steps: int, of_steps: int) -> Expected:
    """Return a session that ends after ``steps`` of its training steps: nothing is sent back."""
    timing = whole.timing
    assert timing is not None
    parts = timing.download_s, timing.train_s * (steps / of_steps), 0.0
    return _took(of_class, whole, parts, whole.status, timing.agree_s)


def idle(of_class: ClassPlan, whole: Expected) -> Expected:
    """Return a session of the same seconds and bytes in which the client did not train: it waited, and spent no MACs."""
    timing, rates = whole.timing, of_class.device.energy
    assert timing is not None
    waited_j = 0.0 if rates is None else rates.idle_w * timing.train_s
    return retimed(of_class, replace(whole, macs=0), replace(timing, train_j=waited_j))


def retimed(of_class: ClassPlan, session: Expected, timing: Timing) -> Expected:
    """Return a session with other seconds, and the joules of these seconds and of its bytes."""
    return replace(session, timing=with_joules(of_class.device, timing, session.download_bytes, session.upload_bytes))


def _took(of_class: ClassPlan, whole: Expected, parts: tuple[float, float, float], status: Foreseen, agree_s: float) -> Expected:
    """Return a session cut to ``parts``: seconds of download, training and upload, after ``agree_s``."""
    timing, grouped = whole.timing, whole.grouped
    assert timing is not None
    of_parts = timing.download_s, timing.train_s, timing.upload_s
    # A part that is not cut has a share of exactly 1, so nothing of it is lost in rounding.
    down, train, up = (took_s / of_s if of_s else 0.0 for took_s, of_s in zip(parts, of_parts, strict=True))
    # The messages of the agreement were sent before anything is cut.
    first_down, first_up = (0, 0) if grouped is None else (grouped.download_bytes, grouped.upload_bytes)
    macs = int(whole.macs * train)
    download_bytes = first_down + int((whole.download_bytes - first_down) * down)
    upload_bytes = first_up + int((whole.upload_bytes - first_up) * up)
    took = replace(whole, macs=macs, download_bytes=download_bytes, upload_bytes=upload_bytes, status=status)
    return retimed(of_class, took, Timing(*parts, 0.0, 0.0, agree_s=agree_s, train_j=timing.train_j * train))
