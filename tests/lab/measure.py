"""How true a lab is, and what it costs: `python -m tests.lab.measure [SECONDS]`, as root, on a quiet machine.

Prints build time; for 8 hosts that all send at 200 Mbit/s, the rate that each gets and the share of all cores that it
costs; UDP background load against what was asked, and what its process costs; the round trips of `wan4`.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headway.lab.files import load_scenario, parse_event
from headway.lab.lab import Lab
from headway.lab.topology import LinkId
from tests.lab.programs import round_trip_s, throughput_Bps


def busy_and_total() -> tuple[int, int]:
    """Clock ticks of all cores: busy, and all."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def busy_share(before: tuple[int, int]) -> float:
    """Share of all cores that was busy since `before`."""
    now = busy_and_total()
    return (now[0] - before[0]) / max(now[1] - before[1], 1)


def ticks_of(script: str) -> float:
    """Seconds of CPU that the process of a script of the lab's has used."""
    found = subprocess.run(["pgrep", "-f", f"lab/{script}"], capture_output=True, text=True).stdout.split()
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in found]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / 100


def children_s() -> float:
    """Seconds of CPU of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(lab: Lab, link: LinkId) -> tuple[float, int]:
    """A link's bytes, and when they were read."""
    begun = time.monotonic()
    count = lab.counters()[link].bytes
    return (begun + time.monotonic()) / 2, count


def mbit(rate_Bps: float) -> str:
    """For people."""
    return f"{rate_Bps * 8e-6:.1f} Mbit/s"


def build_times() -> None:
    """Time to build and to remove star8."""
    ups, downs = [], []
    for _ in range(7):
        begun = time.monotonic()
        lab = Lab.up(load_scenario("star8"))
        ups.append(time.monotonic() - begun)
        begun = time.monotonic()
        lab.close()
        downs.append(time.monotonic() - begun)
    print(f"star8: up in {statistics.median(ups):.2f} s, down in {statistics.median(downs):.2f} s (medians of 7)")


def all_send(span_s: float) -> None:
    """Eight flows in a ring."""
    with Lab.up(load_scenario("star8")) as lab, ThreadPoolExecutor(8) as pool:
        pairs = [(lab.hosts[i], lab.hosts[(i + 1) % 8]) for i in range(8)]
        before, used = busy_and_total(), children_s()
        rates = sorted(pool.map(lambda pair: throughput_Bps(lab, *pair, duration_s=span_s), pairs))
        share, used = busy_share(before), children_s() - used
        ideal = 25e6 * 1448 / 1514
    print(
        f"8 hosts send: payload {mbit(rates[0])} to {mbit(rates[-1])}, median {mbit(statistics.median(rates))},",
        end=" ",
    )
    print(f"ideal {mbit(ideal)};", end=" ")
    print(f"the senders and receivers used {used / span_s:.2f} cores, all that ran {share:.0%} of all cores")


def udp_load(span_s: float) -> None:
    """Background load alone, and against one TCP flow."""
    with Lab.up(load_scenario("star8")) as lab:
        a, b = lab.hosts[:2]
        link = LinkId(b.name, "down")
        for share in ("25%", "50%", "75%"):
            event = parse_event({"id": "l", "type": "load", "target": b.name, "direction": "down", "udp": share})
            lab.apply(event)
            cpu, begun, before = ticks_of("load.py"), *timed(lab, link)
            time.sleep(span_s)
            ended, after = timed(lab, link)
            cost, span = ticks_of("load.py") - cpu, ended - begun
            rate = (after - before) / span
            beside = throughput_Bps(lab, a, b, duration_s=span_s)
            lab.undo(event)
            print(f"UDP {share} of 200 Mbit/s: {mbit(rate)}, {cost / span:.1%} of a core; ", end="")
            print(f"a TCP flow beside it gets {mbit(beside)}")


def delay(span_s: float) -> None:
    """wan4: round trips, one flow, the relay's cost."""
    with Lab.up(load_scenario("wan4")) as lab:
        a, b = lab.hosts[:2]
        trips = [round_trip_s(lab, a, b) * 1e3 for _ in range(5)]
        cpu, begun = ticks_of("relay.py"), time.monotonic()
        rate = throughput_Bps(lab, a, b, duration_s=2 * span_s)
        cost = (ticks_of("relay.py") - cpu) / (time.monotonic() - begun)
    print(f"wan4: round trips {min(trips):.2f} to {max(trips):.2f} ms for 40; ", end="")
    print(f"one flow {mbit(rate)} of {mbit(6.25e6 * 1448 / 1514)}, relay {cost:.1%} of a core")


def main() -> None:
    """Measure everything."""
    span_s = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    before = busy_and_total()
    time.sleep(1)
    print(f"before: {busy_share(before):.0%} of all cores busy")
    build_times()
    all_send(span_s)
    udp_load(span_s)
    delay(span_s)


if __name__ == "__main__":
    main()
