"""What lost packets cost a TCP flow, for a fluid that has no packets to lose. Pure.

Mathis, Semke, Mahdavi, Ott (CCR 27(3), 1997): a flow that loses packets at random with a small probability p, and
halves its window each time, settles at

    rate = MSS / RTT * sqrt(3/2) / sqrt(p)

whatever the links could carry. It is an upper limit: timeouts, which matter from a few percent of loss on, make a real
flow slower still. CUBIC, the usual control, behaves so where RTT or rate are small (RFC 9438, 4.3) and is faster on
long fat paths. A round trip is taken as twice the flow's latency: a flow that loss holds back leaves no queue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

MSS_BYTES = 1448
"""Payload of a full TCP segment with timestamps on Ethernet (docs/lab.md, "Rates")."""


def tcp_limit_Bps(loss: float, latency_s: float) -> float:
    """The most that a TCP flow gets, bytes per second; infinite without loss, or without latency.

    Args:
        loss: part of its packets that is lost, 0 to 1.
        latency_s: of its route, one way.
    """
    if loss <= 0 or latency_s <= 0:
        return math.inf
    return MSS_BYTES / (2 * latency_s) * math.sqrt(1.5 / loss)


def either(losses: Iterable[float]) -> float:
    """Part that is lost where losses are independent of each other."""
    return 1 - math.prod(1 - loss for loss in losses)
