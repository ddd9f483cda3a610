"""One rank of a scenario's job in a lab: `python -m headway.bench.job_worker SOCKET JOB RANK`.

It gets its `Assignment` from the coordinator, makes its connections, says that it is ready, and waits for the common
zero of time. Then it repeats the job's loop, and after each iteration tells when each phase ended. Computing is
sleeping: several ranks share a core here, and a rank that computes sends nothing either way. torch is loaded only
for collectives.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

from headway.bench.job_links import SendLinks
from headway.bench.rank_lines import RankLine
from headway.errors import HeadwayError
from headway.lab.draws import ComputeTimes
from headway.lab.jobs import Job, Phase

YIELD_S = 1.0
"""A rank that fails over another waits this long before it ends, so that the one which failed first is named."""


class Assignment(BaseModel):
    """What a rank does.

    Attributes:
        job: its loop.
        addresses, ports: where each of the job's ranks listens for `send`.
        backend: of torch.distributed.
        seed: of the whole run.
    """

    model_config = ConfigDict(frozen=True)

    job: Job
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    backend: str
    seed: int


class Zero(BaseModel):
    """When the run begins, on time.monotonic(), which all of a machine's namespaces share."""

    model_config = ConfigDict(frozen=True)

    zero_s: float


class IterationTold(BaseModel):
    """One iteration of one rank: when it began, then when each phase ended; seconds after zero."""

    model_config = ConfigDict(frozen=True)

    iteration: int
    marks_s: tuple[float, ...]


def has_part(job: Job, rank: int) -> bool:
    """Whether a rank of the job computes or communicates at all; one that does not would repeat nothing for ever."""
    return any(
        rank in (phase.src, phase.dst) if phase.kind == "send" else phase.kind != "compute" or phase.compute
        for phase in job.loop
    )


def run_rank(
    job: Job, rank: int, *, zero_s: float, seed: int, links: SendLinks, collective: Callable[[Phase], None],
    tell: Callable[[IterationTold], None],
) -> None:  # fmt: skip
    """Repeat the job's loop as often as it says, or for ever; not at all where this rank has no part in it."""
    if not has_part(job, rank):
        return
    times = ComputeTimes(job, rank, seed=seed)
    _sleep_until(zero_s + job.start)
    now_s = time.monotonic()
    for iteration in itertools.count() if job.iterations is None else range(job.iterations):
        if job.period is not None:
            _sleep_until(zero_s + job.start + iteration * job.period)
            now_s = time.monotonic()
        marks_s = [now_s - zero_s]
        for phase in job.loop:
            if phase.kind == "compute":
                _sleep_until(now_s + times.draw(phase))
            elif phase.kind != "send":
                collective(phase)
            elif phase.src == rank:
                links.send(phase.dst, phase.size_bytes)
            elif phase.dst == rank:
                links.receive(phase.src, phase.size_bytes)
            now_s = time.monotonic()
            marks_s.append(now_s - zero_s)
        tell(IterationTold(iteration=iteration, marks_s=tuple(marks_s)))


def _sleep_until(at_s: float) -> None:
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(left_s)


def main(socket_path: str, group: str, rank: int) -> None:
    """Do what the coordinator assigns."""
    line = RankLine(socket_path, group=group, rank=rank)
    line.send("here")
    assignment = Assignment.model_validate_json(line.receive())
    job = assignment.job
    links = SendLinks(
        rank=rank, loop=job.loop, addresses=assignment.addresses, ports=assignment.ports, streams=round(job.weight),
        congestion_control=job.congestion_control, interleave=job.interleave,
    )  # fmt: skip
    collective, leave = _collectives(assignment)
    line.send("ready")
    text = line.receive()
    if text:
        run_rank(
            job, rank, zero_s=json.loads(text)["zero_s"], seed=assignment.seed, links=links, collective=collective,
            tell=lambda told: line.send(told.model_dump_json()),
        )  # fmt: skip
    leave()
    links.close()
    line.close()


def _collectives(assignment: Assignment) -> tuple[Callable[[Phase], None], Callable[[], None]]:
    """What runs a collective, and what to call at the end."""
    job = assignment.job
    loop = job.loop
    if all(phase.kind in ("compute", "send") for phase in loop):
        return lambda phase: None, lambda: None
    from headway.bench.job_collectives import JobCollectives

    collectives = JobCollectives(
        backend=assignment.backend, loop=loop, congestion_control=job.congestion_control, interleave=job.interleave
    )
    return collectives.run, collectives.close


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except (HeadwayError, OSError, RuntimeError) as trouble:
        lines = str(trouble).strip().splitlines() or [type(trouble).__name__]
        sys.stderr.write(f"{lines[0]}\n")
        sys.stderr.flush()
        time.sleep(YIELD_S)
        sys.exit(1)
