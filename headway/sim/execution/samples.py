"""What the simulated connections of a job did, told as the live transport tells it: for the tuner. Pure.

The live transport reads its sockets every 40 ms. Here a timer does, as long as any flow runs: bytes, the time in which
the connection had something on its way, and a round trip whose queue is what the connections over a full link may have
in front of it. What a fluid can't know, retransmissions, is None; a simulated receiver always reads, and a send buffer
is never too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.observe.samples import FlowSample
from headway.sim.engine.network import Flow, Network
from headway.sim.execution.host_model import DEFAULT_HOST, HostModel

STRETCH_S = 0.04
"""Between two readings, as `collectives.communicator` reads."""

LEAST_ROUND_TRIP_S = 400e-6
"""Beside twice the route's latency: two passes through the kernels at both ends, measured on the emulated cluster."""

MOST_QUEUE_S = 0.02
"""A link's queue is full then: the lab's default, 20 ms at the link's rate."""


@dataclass(slots=True)
class _Meter:
    """One connection in one operation: its flows that run, and what has not been told.

    `latency_of`: of the links that its flows cross, together or one after the other.
    """

    src: int
    dst: int
    running: list[tuple[Flow, float]] = field(default_factory=list)
    latency_of: dict[tuple[int, ...], float] = field(default_factory=dict)
    since_s: float = 0.0
    queue_s: float = 0.0


class FlowSampler:
    """Samples of the flows of one job.

    Args:
        network: that they run over.
        hosts: rank -> host of the fabric.
        host: the ends of the connections.
    """

    def __init__(self, network: Network, hosts: Sequence[int], host: HostModel = DEFAULT_HOST) -> None:
        self._network, self._loop = network, network.loop
        self._hosts = tuple(hosts)
        self._kernel_bytes = host.kernel_bytes
        self._meters: dict[int, dict[tuple[int, int], _Meter]] = {}
        self._samples: dict[int, list[FlowSample]] = {}
        self._ticking = False

    def flow_started(self, number: int, src: int, dst: int, flow: Flow) -> None:
        """Operation `number` began a flow from rank `src` to rank `dst`. Those between ranks of one host count not."""
        if self._hosts[src] == self._hosts[dst]:
            return
        meters = self._meters.setdefault(number, {})
        meter = meters.get((src, dst))
        if meter is None:
            meter = meters[src, dst] = _Meter(src, dst, since_s=self._loop.now_s)
        meter.running.append((flow, 0.0))
        meter.latency_of[self._network.links_of(flow)] = flow.latency_s
        if not self._ticking:
            self._ticking = True
            self._loop.after(STRETCH_S, self._tick)

    def take(self, number: int) -> list[FlowSample]:
        """The samples of operation `number`, which has ended; they are forgotten."""
        self._read(number)
        self._meters.pop(number, None)
        return self._samples.pop(number, [])

    def _tick(self) -> None:
        # Where nothing moves the timer stops, else it would keep a clock going for ever that has nothing to wait for.
        moved = [self._read(number) for number in self._meters]
        running = (meter.running for meters in self._meters.values() for meter in meters.values())
        self._ticking = any(moved) and any(running)
        if self._ticking:
            self._loop.after(STRETCH_S, self._tick)

    def _read(self, number: int) -> bool:
        """One sample of each connection that did something since the last reading; whether any byte moved."""
        moved = False
        network, now_s = self._network, self._loop.now_s
        queue_s: list[float] | None = None
        samples = self._samples.setdefault(number, [])
        for meter in self._meters.get(number, {}).values():
            if not meter.running:
                meter.since_s = now_s
                continue
            if queue_s is None:
                queue_s = self._queues()
            sent_bytes = 0.0
            running: list[tuple[Flow, float]] = []
            for flow, before_bytes in meter.running:
                now_bytes = network.sent_bytes(flow)
                if flow.arrives:
                    sent_bytes += now_bytes - before_bytes
                if not flow.ended:
                    running.append((flow, now_bytes))
            busy_s = _busy_s([flow for flow, _ in meter.running], meter.since_s, now_s)
            meter.running = running
            if running:
                meter.queue_s = sum(queue_s[link] for flow, _ in running for link in network.links_of(flow))
            moved = moved or sent_bytes > 0
            if now_s > meter.since_s and (sent_bytes > 0 or busy_s > 0):
                least_s = LEAST_ROUND_TRIP_S + 2 * sum(meter.latency_of.values())
                samples.append(
                    FlowSample(
                        src=meter.src,
                        dst=meter.dst,
                        start_s=meter.since_s,
                        end_s=now_s,
                        acked_bytes=round(sent_bytes),
                        busy_s=min(busy_s, now_s - meter.since_s),
                        rwnd_limited_s=0.0,
                        sndbuf_limited_s=0.0,
                        rtt_s=least_s + meter.queue_s,
                        min_rtt_s=least_s,
                        operation=number,
                    )
                )
            meter.since_s = now_s
        return moved

    def _queues(self) -> list[float]:
        """What waits in front of each link, in seconds: nothing, where it is not full."""
        full, flows = self._network.use()
        return [
            min(MOST_QUEUE_S, count * self._kernel_bytes / max(1.0, self._network.capacity_Bps(link)))
            if is_full
            else 0.0
            for link, (is_full, count) in enumerate(zip(full.tolist(), flows.tolist(), strict=True))
        ]


def _busy_s(flows: Sequence[Flow], since_s: float, now_s: float) -> float:
    """For how long any of the flows ran between two times."""
    busy_s, until_s = 0.0, since_s
    for flow in sorted(flows, key=lambda flow: flow.began_s):
        end_s = min(now_s, flow.ended_s)
        if end_s > until_s:
            busy_s += end_s - max(until_s, flow.began_s)
            until_s = end_s
    return busy_s
