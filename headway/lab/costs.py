"""What ends of connections cost, as scenarios write it. Pure."""

from __future__ import annotations

from headway.lab.quantities import Model, Time

WIRE_ALPHA_S = 100e-6
"""Time of one hop of an empty message on the emulated switch, without the scenario's own latency."""


class Costs(Model):
    """Fixed costs of a network's hosts, for the simulator. The lab's are what they are; the defaults are near them.

    Attributes:
        hop: of an empty message between two hosts, beyond the latencies on its way: kernels, adapters, wake-ups.
        message: processor time of a rank for each message that it sends or receives in a collective.
        local: of a message between two ranks of one host.
    """

    hop: Time = WIRE_ALPHA_S
    message: Time = 10e-6
    local: Time = 20e-6
