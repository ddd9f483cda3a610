"""How long the planner takes: `python bench/planner_time.py`. Prints median milliseconds of `pack` and `candidates`.

Cases: all hosts equal, one slow host, several slow hosts of different rates, racks with one slow uplink. Goals: `pack`
in 10 ms at 64 ranks and 1 s at 1024.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from headway.cluster.model import Cluster, Host, Rack, star
from headway.collectives.candidates import candidates, idle_plan
from headway.collectives.packing import pack
from headway.collectives.plan import Collective
from headway.collectives.verify import check

RATE_Bps = 25e6
SIZE_BYTES = 64 * 2**20
RANKS = (8, 64, 256, 1024)


def idle(n: int) -> Cluster:
    """Equal hosts."""
    return star(n, RATE_Bps)


def one_slow(n: int) -> Cluster:
    """One host's downlink at half."""
    return star(n, RATE_Bps).with_host(n // 2, downlink_Bps=RATE_Bps / 2)


def several_slow(n: int) -> Cluster:
    """Every eighth host slow, at four different rates."""
    cluster = star(n, RATE_Bps)
    for k, host in enumerate(range(0, n, 8)):
        cluster = cluster.with_host(host, uplink_Bps=RATE_Bps * (0.25, 0.4, 0.55, 0.7)[k % 4])
    return cluster


def racks(n: int) -> Cluster:
    """Racks of n/4 hosts, uplinks oversubscribed 2:1, one of them at a quarter of that."""
    size = n // 4
    uplinks = [RATE_Bps * size / 2] * 3 + [RATE_Bps * size / 8]
    hosts = tuple(Host(f"host {i}", RATE_Bps, RATE_Bps, i // size) for i in range(n))
    return Cluster(
        hosts=hosts,
        host_of=tuple(range(n)),
        racks=tuple(Rack(f"rack {k}", rate, rate) for k, rate in enumerate(uplinks)),
    )


def median_ms(call: Callable[[], object], runs: int) -> float:
    """Median wall time of `call`, after one call to warm up."""
    call()
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def main() -> None:
    """Print one line per case and number of ranks."""
    print(f"{'case':<14}{'ranks':>6}{'pack ms':>10}{'candidates ms':>15}{'check ms':>10}{'x limit':>9}  plan")
    for build in (idle, one_slow, several_slow, racks):
        for n in RANKS:
            base, cluster = idle(n) if build is not racks else racks(n), build(n)
            runs = 9 if n <= 64 else 3
            packed = pack(cluster, Collective.ALL_REDUCE, SIZE_BYTES)
            pack_ms = median_ms(lambda c=cluster: pack(c, Collective.ALL_REDUCE, SIZE_BYTES), runs)  # type: ignore[misc]
            plan = idle_plan(base, Collective.ALL_REDUCE, SIZE_BYTES)
            started = time.perf_counter()
            ranked = candidates(cluster, Collective.ALL_REDUCE, SIZE_BYTES, "packing", plan, plan)
            candidates_ms = (time.perf_counter() - started) * 1e3
            started = time.perf_counter()
            check(packed.plan, Collective.ALL_REDUCE)
            check_ms = (time.perf_counter() - started) * 1e3
            ratio = packed.transfer_s / ranked[0].limit_s
            figures = f"{pack_ms:>10.1f}{candidates_ms:>15.1f}{check_ms:>10.1f}{ratio:>9.3f}"
            print(f"{build.__name__:<14}{n:>6}{figures}  {packed.plan.name[:60]}")


if __name__ == "__main__":
    main()
