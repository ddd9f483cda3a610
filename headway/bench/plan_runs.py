"""Timing any plan on the hosts of a lab, one rank on each, by the executor that live jobs use."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.bench.plan_worker import GROUP, LIMIT_S, Order
from headway.bench.rank_lines import RankLines
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_codec import encode
from headway.lab.lab import Lab

HEAD_START_S = 0.005
"""From the order to the common begin: the order must reach every rank, and the links' buckets fill meanwhile."""
_WORKER = "headway.bench.plan_worker"


class PlanRanks:
    """Ranks that wait for plans. Made by `plan_ranks`."""

    def __init__(self, lab: Lab, lines: RankLines, processes: list[subprocess.Popen[bytes]]) -> None:
        self._lab, self._lines, self._processes = lab, lines, processes
        self._ranks = range(len(processes))

    def _trouble(self) -> str:
        for rank, process in enumerate(self._processes):
            if process.poll() is not None:
                return f"rank {rank} on {self._lab.hosts[rank].name} ended with status {process.returncode}"
        return ""

    def wait_until_ready(self) -> None:
        """All ranks are connected. HeadwayError when one is not."""
        self._lines.gather(GROUP, self._ranks, limit_s=LIMIT_S, alive=self._trouble)

    def time_s(self, plan: Plan, collective: Collective, size_bytes: int, chunk_bytes: int) -> float:
        """Seconds from when the last rank began one operation until the last had its result."""
        order = Order(
            plan=encode(plan),
            collective=collective,
            size_bytes=size_bytes,
            chunk_bytes=chunk_bytes,
            at_s=time.monotonic() + HEAD_START_S,
        )
        for rank in self._ranks:
            self._lines.send(GROUP, rank, order.model_dump_json())
        told = self._lines.gather(GROUP, self._ranks, limit_s=LIMIT_S + 10, alive=self._trouble)
        spans: list[tuple[float, float]] = [json.loads(text) for text in told.values()]
        return max(end for _, end in spans) - max(begin for begin, _ in spans)


@contextmanager
def plan_ranks(lab: Lab) -> Iterator[PlanRanks]:
    """One rank on each host of `lab`, which end with the block."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="headway-plans-") as text, RankLines(Path(text) / "lines") as lines:
        try:
            for host in lab.hosts:
                arguments = [str(lines.path), str(host.rank), str(len(lab.hosts)), "eth0", text]
                processes.append(lab.popen(host.name, [sys.executable, "-m", _WORKER, *arguments]))
            ranks = PlanRanks(lab, lines, processes)
            ranks.wait_until_ready()
            yield ranks
        finally:
            lines.close()
            for process in processes:
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
