"""What one event of the simulator costs: `python -m bench.sim_scale --out FILE.json`.

An event is a flow that ends and another that starts in its place, between other hosts of its component; components
share no links. Two tables: more hosts with the same flows in each component, where time per event should stay; and more
flows in one component, where it should grow with the flows whose rate is solved, no faster. Each line is measured in a
process of its own, after the compiled code is loaded. Time is processor time, which on a busy machine says more than
the clock; memory is what the process holds beyond the loaded code.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.own_process import measured, write
from headway.bench.markdown import table
from headway.sim.engine.fabric import star
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network

RATE_Bps = 1.25e9
SIZE_BYTES = 1e6
HOSTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
FLOWS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
GROUP_HOSTS, GROUP_FLOWS = 4, 8
FLOW_HOSTS = 64


@dataclass(frozen=True)
class Case:
    """`components` of `hosts` hosts each, with `flows` flows at any time; `events` are measured."""

    hosts: int
    components: int
    flows: int
    events: int


@dataclass(frozen=True)
class Cost:
    """What a case took.

    Attributes:
        event_us: processor time of an event, callbacks included. solved_us: the same for each such flow.
        solved: flows whose rate was solved, per event.
        rss_MB: 1e6 bytes of memory beyond the loaded code.
    """

    hosts: int
    components: int
    flows: int
    events: int
    event_us: float
    events_per_s: float
    solved: float
    solved_us: float
    rss_MB: float


def resident_bytes() -> int:
    """Memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Traffic:
    """Flows that take each other's place."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.loop = Loop()
        self.network = Network(self.loop, star(case.hosts * case.components, RATE_Bps))
        self.random = random.Random(1)
        self.ended = 0
        for component in range(case.components):
            for _ in range(case.flows):
                self._begin(component)

    def _begin(self, component: int) -> None:
        hosts = self.case.hosts
        src = self.random.randrange(hosts)
        dst = (src + 1 + self.random.randrange(hosts - 1)) % hosts
        first = component * hosts
        size_bytes = SIZE_BYTES * (0.5 + self.random.random())
        self.network.start(first + src, first + dst, size_bytes, on_done=self._next(component))

    def _next(self, component: int) -> Callable[[], None]:
        def ended() -> None:
            self.ended += 1
            if self.ended >= self.case.events:
                self.loop.stop()
            self._begin(component)

        return ended

    def run(self, events: int) -> float:
        """Processor seconds that so many events take."""
        self.ended = self.case.events - events
        started = time.process_time()
        self.loop.run()
        return time.process_time() - started


def measure(case: Case) -> Cost:
    """In this process."""
    Traffic(Case(4, 1, 4, 100)).run(100)
    before_bytes = resident_bytes()
    traffic = Traffic(case)
    traffic.run(max(1, case.events // 10))
    solved = traffic.network.solved
    took_s = traffic.run(case.events)
    solved = traffic.network.solved - solved
    return Cost(
        hosts=case.hosts * case.components,
        components=case.components,
        flows=case.flows,
        events=case.events,
        event_us=took_s / case.events * 1e6,
        events_per_s=case.events / took_s,
        solved=solved / case.events,
        solved_us=took_s / solved * 1e6,
        rss_MB=(resident_bytes() - before_bytes) / 1e6,
    )


def by_hosts(events: int) -> list[Case]:
    """More and more components of the same kind."""
    return [Case(GROUP_HOSTS, hosts // GROUP_HOSTS, GROUP_FLOWS, events) for hosts in HOSTS]


def by_flows(events: int) -> list[Case]:
    """One component with more and more flows; as many flows in all are solved, or nearly."""
    return [Case(FLOW_HOSTS, 1, flows, max(200, events * FLOWS[0] // flows)) for flows in FLOWS]


def shown(costs: Sequence[Cost]) -> str:
    """As a table."""
    heads = ("hosts", "components", "flows in each", "us per event", "events/s", "rates per event", "us per rate", "MB")
    return table(
        heads,
        [
            (
                str(cost.hosts),
                str(cost.components),
                str(cost.flows),
                f"{cost.event_us:.1f}",
                f"{cost.events_per_s:,.0f}",
                f"{cost.solved:.1f}",
                f"{cost.solved_us:.2f}",
                f"{cost.rss_MB:.1f}",
            )
            for cost in costs
        ],
    )


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--events", type=int, default=50_000, help="of each line; fewer where flows are many")
    options = parser.parse_args()
    found: dict[str, list[Cost]] = {}
    for name, cases in (("hosts", by_hosts(options.events)), ("flows", by_flows(options.events))):
        found[name] = measured(measure, cases)
        print(shown(found[name]), end="\n\n", flush=True)
    peak = max(cost.events_per_s for costs in found.values() for cost in costs)
    print(f"Most events per second: {peak:,.0f}, each the end of one flow and the start of another.")
    if options.out is not None:
        write(options.out, found)


if __name__ == "__main__":
    main()
