"""The tuner of live groups on a simulated clock: reports, rulings and journal as rank 0 and its ranks make them. Pure.

Nothing here decides anything: `agreement.EpochClock` cuts the operations into epochs, `observe.summary` makes each
rank's report, packed as it would travel, and `decider.Decider` rules. What differs from a live group: a ruling is
there at the instant when the last rank has ended the epoch (live: a round trip of about 0.5 ms, and planning), and all
ranks share one clock.

What the simulator measures is exact, and a tuner must not be judged on exact signals: `noise` spoils them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from headway.collectives.agreement import (
    FIRST_EPOCH_WEIGHT,
    FIRST_LEAD_OPERATIONS,
    LARGE_BYTES,
    Admission,
    EpochClock,
    EpochReport,
)
from headway.collectives.decider import Decider, DoneOperation
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_book import PlanBook
from headway.decide.journal import Journal
from headway.errors import HeadwayError
from headway.lab.draws import mix
from headway.observe.samples import FlowSample
from headway.observe.summary import OperationSpan, summarise
from headway.sim.engine.network import Flow
from headway.sim.jobs.job import OperationDone

MEASURED_NOISE = 0.03
"""Standard deviation of the times of equal operations, over their mean, on an idle emulated cluster of 8 hosts."""


class Sampler(Protocol):
    """Reads the flows of one job's operations as a transport reads its sockets."""

    def flow_started(self, number: int, src: int, dst: int, flow: Flow) -> None:
        """Operation `number` began a flow from rank `src` to rank `dst`."""
        ...

    def take(self, number: int) -> Sequence[FlowSample]:
        """Samples of operation `number`, which has ended, of all ranks; then forget them."""
        ...


class TunedPlans:
    """The plan source of a job whose plans are tuned.

    Args:
        book: its plans without rulings, over the ranks with nominal rates, as a user states them. Its policy is the
            tuner's: `packing`, `react`, or `off`, which watches and writes, and changes nothing.
        group: the job's name.
        clock: the simulated time, seconds.
        sampler: what its flows did.
        journal: takes the job's records.
        noise: standard deviation of the relative error of what is measured: one draw for each operation's time, one
            for each sample's bytes.
        seed: of the noise.
    """

    def __init__(
        self,
        book: PlanBook,
        *,
        group: str,
        clock: Callable[[], float],
        sampler: Sampler,
        journal: Journal,
        noise: float = MEASURED_NOISE,
        seed: int = 0,
    ) -> None:
        self._book = book
        self._decider = Decider(book=book, group=group, clock=clock)
        self._sampler = sampler
        self._journal = journal
        self._noise = noise
        self._random = random.Random(mix(seed, *group.encode()))
        self._epochs = EpochClock(epoch_weight=FIRST_EPOCH_WEIGHT, lead_operations=FIRST_LEAD_OPERATIONS)
        self._size = book.cluster.world_size
        self._next = 0
        self._under_way: dict[int, tuple[int, Admission]] = {}
        self._done: dict[int, DoneOperation] = {}
        self._spans: dict[int, list[OperationSpan]] = {rank: [] for rank in range(self._size)}
        self._samples: dict[int, list[FlowSample]] = {rank: [] for rank in range(self._size)}
        self.reroutes: dict[tuple[int, int], int] = {}
        given = {"plan": book.pinned} if book.pinned else {}
        journal.write(self._decider.start_record(book.policy, given))

    def plan_for(self, number: int, collective: Collective, size_bytes: int, root: int) -> Plan | None:
        """See `PlanSource`. None until the ruling that holds from this operation is there."""
        admission = self._epochs.admit(self._next, size_bytes) if self._size > 1 else Admission(True, in_epoch=False)
        if not admission.admitted:
            return None
        self._under_way[number] = (self._next, admission)
        self._next += 1
        for pair in admission.reroutes:
            self.reroutes[pair] = self.reroutes.get(pair, 0) + 1
        return self._book.choose(collective, size_bytes, root, self._epochs.tuned_plan(collective))

    def flow_started(self, number: int, src: int, dst: int, flow: Flow) -> None:
        """See `PlanSource`."""
        self._sampler.flow_started(number, src, dst, flow)

    def operation_done(self, done: OperationDone) -> None:
        """See `PlanSource`. At the end of an epoch, this is where all ranks report and rank 0 rules."""
        if done.number not in self._under_way:
            raise HeadwayError(f"operation {done.number} ended, but was never given a plan")
        own, admission = self._under_way.pop(done.number)
        samples = self._sampler.take(done.number)
        if done.size_bytes >= LARGE_BYTES:
            self._measure(own, done, samples if admission.in_epoch else None)
        if admission.ends_epoch is not None:
            self._decide(admission.ends_epoch)

    def finish(self) -> None:
        """See `PlanSource`: the operations that no epoch ended after."""
        for record in self._decider.operation_records(self._done):
            self._journal.write(record)
        self._done = {}

    def _measure(self, own: int, done: OperationDone, samples: Sequence[FlowSample] | None) -> None:
        stretch = max(0.5, self._random.gauss(1.0, self._noise)) if self._noise else 1.0
        took_s = done.ended_s[0] - done.ready_s[0]
        self._done[own] = DoneOperation(
            done.collective, done.size_bytes, done.plan.name, done.ended_s[0], took_s * stretch
        )
        if samples is None:
            return
        for rank, (ready_s, ended_s) in enumerate(zip(done.ready_s, done.ended_s, strict=True)):
            self._spans[rank].append(OperationSpan(own, ended_s - (ended_s - ready_s) * stretch, ended_s))
        for sample in samples:
            self._samples[sample.src].append(self._spoilt(sample, own))

    def _spoilt(self, sample: FlowSample, own: int) -> FlowSample:
        if not self._noise:
            return replace(sample, operation=own)
        error = max(0.0, self._random.gauss(1.0, self._noise))
        return replace(sample, acked_bytes=round(sample.acked_bytes * error), operation=own)

    def _decide(self, epoch: int) -> None:
        ruled_from = self._epochs.ruled_from
        assert ruled_from is not None, "an epoch that ended has an operation that its ruling holds from"
        reports = [
            EpochReport(
                epoch=epoch,
                rank=rank,
                ruled_from=ruled_from,
                durations_s={span.number: span.end_s - span.start_s for span in self._spans[rank]},
                summary=summarise(rank, self._samples[rank], self._spans[rank]).to_json(),
            )
            for rank in range(self._size)
        ]
        for rank in range(self._size):
            self._spans[rank], self._samples[rank] = [], []
        done, self._done = self._done, {}
        decision = self._decider.decide(epoch, ruled_from, reports, done)
        self._epochs.receive(decision.ruling)
        for record in self._decider.records(decision):
            self._journal.write(record)
