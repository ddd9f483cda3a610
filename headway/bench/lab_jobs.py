"""Running a scenario's jobs for real: every rank a process on its host of a lab, all from one zero of time.

ranks call -> each gets its assignment -> all are ready -> zero -> loops, told iteration by iteration -> results
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.bench.job_measures import job_result
from headway.bench.job_worker import Assignment, IterationTold, Zero, has_part
from headway.bench.journal_tail import JournalTail
from headway.bench.rank_lines import RankLines, Said
from headway.collectives.plan_book import PINNABLE
from headway.decide.journal import OperationRecord
from headway.errors import HeadwayError, UsageError
from headway.interleave.actuator import choose
from headway.interleave.aggressiveness import Aggressiveness
from headway.lab.job_runs import JobRank, check_runnable, job_ranks
from headway.lab.jobs import Job
from headway.lab.lab import Lab
from headway.lab.placement import place
from headway.lab.ranks import RankProcess, RunResult
from headway.lab.scenario import Scenario
from headway.report.words import counted
from headway.sim.jobs.job_run import phase_limit_s
from headway.sim.result import JobResult
from headway.sim.topologies import cluster_of

BACKENDS = ("headway", "gloo")
HEAD_START_S = 0.1
"""From the last rank's "ready" to zero: every rank must have heard of it."""
_WORKER = "headway.bench.job_worker"
_NAMED_HOSTS = 8
"""Of a job, in its headline."""


@dataclass(frozen=True)
class JobsRun:
    """How the processes ended, and what every job did until then, seconds after zero."""

    ended: RunResult
    jobs: Mapping[str, JobResult]


def check_jobs(scenario: Scenario, *, backend: str = "headway") -> None:
    """UsageError where the scenario's jobs cannot run in a lab."""
    check_runnable(scenario)
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}", where="--backend", hint=f"one of {', '.join(BACKENDS)}")
    for job in scenario.jobs:
        collectives = any(phase.kind not in ("compute", "send") for phase in job.loop)
        if backend == "gloo" and collectives and job.weight != 1:
            what = "gloo has one connection between two ranks"
            raise UsageError(what, where=f"job {job.name}: weight", hint="use the backend headway")
        if job.interleave is not None:
            foreign = backend == "gloo" and collectives
            asked = job.interleave
            f = Aggressiveness(slope=asked.slope, intercept=asked.intercept, most=asked.most)
            try:
                choose(job.interleave.actuator, foreign=foreign, aggressiveness=f)
            except UsageError as error:
                where = f"job {job.name}: {error.where}"
                raise UsageError(error.what, where=where, hint=error.hint) from None
        if job.plan and job.plan not in PINNABLE:
            raise UsageError(
                f"{job.plan!r} is no plan", where=f"job {job.name}: plan", hint=f"one of {', '.join(PINNABLE)}"
            )


def headlines(scenario: Scenario, *, backend: str = "headway", seed: int = 0) -> list[str]:
    """A line for each job: `job first: 2 ranks on host0, host2; interleaved by bpf-reno`.

    Args:
        scenario: one that `check_jobs` takes.
        backend: of torch.distributed.
        seed: of the whole run, for placement.
    """
    lines = []
    for job, hosts in ((job, place(scenario, seed=seed)[job.name]) for job in scenario.jobs):
        names = list(dict.fromkeys(scenario.host_names[host] for host in hosts))
        more = f" and {len(names) - _NAMED_HOSTS} more" if len(names) > _NAMED_HOSTS else ""
        on = f"{', '.join(names[:_NAMED_HOSTS])}{more}"
        lines.append(f"job {job.name}: {counted(len(hosts), 'rank')} on {on}; {_pushed_by(scenario, job, backend)}")
    return lines


def _pushed_by(scenario: Scenario, job: Job, backend: str) -> str:
    """What governs how hard a job's connections push, as `choose` has it for each kind of them."""
    control = job.congestion_control or scenario.congestion_control
    asked = job.interleave
    if asked is None:
        return control
    f = Aggressiveness(slope=asked.slope, intercept=asked.intercept, most=asked.most)
    kinds = {phase.kind for phase in job.loop} - {"compute"}
    whose = sorted({backend == "gloo" and kind != "send" for kind in kinds}) or [False]
    actuators = list(dict.fromkeys(choose(asked.actuator, foreign=foreign, aggressiveness=f) for foreign in whose))
    by = " and ".join(actuators)
    # A BPF actuator is a congestion control itself; the others work on top of one.
    return f"interleaved by {by}" + ("" if all(each.startswith("bpf-") for each in actuators) else f" on {control}")


def run_jobs(
    lab: Lab,
    *,
    backend: str = "headway",
    journals: Path | None = None,
    seed: int = 0,
    limit_s: float | None = None,
    echo: bool = False,
    on_line: Callable[[str, str], None] | None = None,
    on_zero: Callable[[], None] = lambda: None,
    on_tick: Callable[[], None] = lambda: None,
) -> JobsRun:
    """Run the jobs of the lab's scenario until those with a number of iterations have ended; one failure ends all.

    Args:
        backend: of torch.distributed, for the jobs' collectives.
        journals: folder for the journals of groups on the backend "headway", JOB.jsonl; None: thrown away.
        seed: of the whole run, for placement and computing times; the simulator's with the same seed are the same.
        limit_s, echo, on_line, on_tick: as in `Lab.run_processes`; labels are "host3 JOB.RANK".
        on_zero: called when time begins: all ranks are connected, and jobs that start at 0 do so.

    UsageError: see `check_jobs`.
    """
    check_jobs(lab.scenario, backend=backend)
    ranks = job_ranks(lab.scenario, seed=seed)
    with tempfile.TemporaryDirectory(prefix="headway-jobs-") as text, RankLines(Path(text) / "lines") as lines:
        folder = journals or Path(text)
        board = _Board(lab, ranks, lines, backend=backend, seed=seed, on_zero=on_zero)

        def tick() -> None:
            board.listen()
            on_tick()

        processes = [_process(lab, rank, lines.path, folder) for rank in ranks]
        ended = lab.run_processes(
            processes, on_line=on_line, on_tick=tick, echo=echo, limit_s=limit_s, enough=board.enough
        )
        board.listen()
        return JobsRun(ended, board.results(folder if backend == "headway" else None))


def _process(lab: Lab, rank: JobRank, lines: Path, journals: Path) -> RankProcess:
    host = lab.hosts[rank.host].name
    argv = [sys.executable, "-m", _WORKER, str(lines), rank.job.name, str(rank.rank)]
    journal = {"HEADWAY_JOURNAL": str(_journal(journals, rank.job.name))}
    environment = {**rank.environment(lab.hosts), **journal}
    label = f"{host} {rank.job.name}.{rank.rank}"
    return RankProcess(rank.host, argv, environment, label, f"job {rank.job.name}: rank {rank.rank} on {host}")


def _journal(folder: Path, job: str) -> Path:
    return folder / f"{job}.jsonl"


class _Board:
    """What is known of every rank, and what it is to be told next."""

    def __init__(
        self,
        lab: Lab,
        ranks: Sequence[JobRank],
        lines: RankLines,
        *,
        backend: str,
        seed: int,
        on_zero: Callable[[], None],
    ) -> None:
        self._lab, self._lines, self._backend, self._seed, self._on_zero = lab, lines, backend, seed, on_zero
        self._ranks = {(rank.job.name, rank.rank): rank for rank in ranks}
        self._unready = set(self._ranks)
        self._told: dict[tuple[str, int], list[IterationTold]] = {name: [] for name in self._ranks}
        self._left: set[tuple[str, int]] = set()
        self._busy = {name for name, rank in self._ranks.items() if has_part(rank.job, rank.rank)}
        self._wanted = {name: rank.job.iterations for name, rank in self._ranks.items() if rank.job.iterations}

    def listen(self) -> None:
        """Take in what ranks have said since the last time."""
        while said := self._lines.poll():
            for line in said:
                self._take(line)

    def enough(self) -> bool:
        """Whether only jobs without a number go on: every rank of the others has said all, and hung up."""
        done = all(
            name in self._left and len(self._told[name]) == wanted * (name in self._busy)
            for name, wanted in self._wanted.items()
        )
        return done and len(self._wanted) < len(self._ranks)

    def _take(self, line: Said) -> None:
        name = (line.group, line.rank)
        if not line.text:
            self._left.add(name)  # whether that was in order, its exit status says
        elif line.text == "here":
            self._lines.send(*name, self._assignment(self._ranks[name]).model_dump_json(exclude_unset=True))
        elif line.text == "ready":
            self._unready.discard(name)
            if not self._unready:
                self._begin()
        else:
            self._told[name].append(IterationTold.model_validate_json(line.text))

    def _assignment(self, rank: JobRank) -> Assignment:
        addresses = tuple(self._lab.hosts[host].address for host in rank.hosts)
        return Assignment(
            job=rank.job, addresses=addresses, ports=rank.send_ports, backend=self._backend, seed=self._seed
        )

    def _begin(self) -> None:
        zero = Zero(zero_s=time.monotonic() + HEAD_START_S)
        for name in self._ranks:
            self._lines.send(*name, zero.model_dump_json())
        time.sleep(max(0.0, zero.zero_s - time.monotonic()))
        self._on_zero()

    def results(self, journals: Path | None) -> Mapping[str, JobResult]:
        """Of every job, by name."""
        scenario = self._lab.scenario
        found = {}
        for job in scenario.jobs:
            mine = [self._ranks[name] for name in self._ranks if name[0] == job.name]
            hosts = mine[0].hosts
            names = [self._lab.hosts[host].name for host in hosts]
            told = {rank: self._told[name, rank] for name, rank in self._busy if name == job.name}
            plans = {} if journals is None else _plans(_journal(journals, job.name))
            cluster = cluster_of(scenario, host_of=hosts)
            limits_s = [phase_limit_s(phase, cluster) for phase in job.loop]
            found[job.name] = job_result(job, names, told, plans, limits_s)
        return found


def _plans(journal: Path) -> Mapping[int, str]:
    """Number of an operation of the group -> its plan. Small operations are not journalled, nor is gloo's work."""
    try:
        records = JournalTail(journal).new_records()
    except (UsageError, UnicodeDecodeError) as error:
        raise HeadwayError(f"a job's journal cannot be read: {error}") from None
    return {record.operation: record.plan for record in records if isinstance(record, OperationRecord)}
