"""Costs made by hand: every count as a test says, or some of every kind of work."""

from dataclasses import fields
from typing import Any

from edgefl.records import Cost
from edgefl.records.work import StepWork, Work

_COUNTS = [of.name for of in fields(Cost) if of.type is int]


def made_cost(every: int = 0, **counts: Any) -> Cost:
    """Return a cost whose counts are all ``every``, except those that are given."""
    return Cost(**(dict.fromkeys(_COUNTS, every) | counts))


def worked_cost() -> Cost:
    """340 MACs a sample forward and backward, of which 150 forward; 7 in a pass."""
    forward = Work(convolution_macs=100, recurrent_macs=40, product_macs=10, elementwise_bytes=20)
    backward = Work(convolution_backward_macs=100, recurrent_macs=70, product_macs=20, elementwise_bytes=20)
    compose = Work(product_macs=7, operations=9)
    once = StepWork(forward + backward, compose, forward, Work(operations=3), Work(update_bytes=400, operations=2))
    macs = {"macs_forward": 150, "macs_backward_input": 40, "macs_backward_weight": 150, "macs_compose": 7}
    return made_cost(batch_size=4, micro_batch=4, work=once, **macs)
