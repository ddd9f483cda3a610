"""What the two ends of a connection add to what the network does: the kernel's buffer, framing, processors. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostModel:
    """Of every rank of an operation.

    Attributes:
        kernel_bytes: of one connection, taken by the kernel and not yet through the network: they can't be overtaken by
            more urgent pieces, and they are what can wait in the network's queues. The send buffer that
            `transport.send_window` starts with, which the kernel doubles.
        header_bytes: sent with each message (`transport.wire`).
        pauses_per_s, pause_s: how often a rank's process is away, at random times, and for how long on average
            (exponential): other processes have the processor.
        copy_Bps: at which a rank copies or adds what it has received, one message after the other.
    """

    kernel_bytes: float = 128 * 1024
    header_bytes: float = 24
    copy_Bps: float = float("inf")
    pauses_per_s: float = 0.0
    pause_s: float = 0.0


DEFAULT_HOST = HostModel()
IDEAL_HOST = HostModel(kernel_bytes=float("inf"), header_bytes=0)
"""Nothing beside the network: what closed forms know."""

LAB_HOST = HostModel(pauses_per_s=50, pause_s=3e-3)
"""Ranks of the emulated cluster: 8 processes and the network of 8 hosts on 2 processors, so that a rank waits for its
turn now and then. Without pauses, all-reduces of 16 MB took 1.04 to 1.08 times as long in the lab as simulated, by six
plans. The two numbers are the best of ten pairs tried on 18 pairs of plan and size, idle network, other work on the
machine: median error 3 %, largest 6 % (medians of 3 seeds; no plan with incast among them). They were not measured by
themselves. Plain TCP in the lab lost 6 % of its rate with the same send buffer and 2 % with four times as large a one,
at a higher load of the machine; these pauses give 2 % and 0 %: the direction holds, the size does not.
"""
