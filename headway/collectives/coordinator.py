"""Rank 0's side of the agreement: gathers the reports of an epoch, lets the tuner decide, rules, and keeps the journal.

The tuner runs on a thread of its own: planning for a thousand ranks takes up to a second, and the progress thread must
not wait for it. Whatever happens there, a ruling comes out: ranks wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from headway.collectives.agreement import LARGE_BYTES, EpochReport, Ruling
from headway.collectives.decider import TYPICAL_BYTES, Decider, DoneOperation
from headway.collectives.operation import OperationOutcome
from headway.collectives.plan import Collective
from headway.collectives.plan_book import PlanBook
from headway.decide.journal import FailureRecord, Journal
from headway.settings import Settings

NEVER_ENDS = 1e18
"""Weight of an epoch after which nothing is decided any more."""

_log = logging.getLogger("headway")


class Coordinator:
    """Decides for a group, on rank 0.

    Args:
        book: the plans in force without rulings.
        group: its name.
        size: number of ranks.
        journal: takes decisions, flows and large operations.
        rule: sends a ruling to every rank; called on the tuner's thread.
    """

    def __init__(
        self, *, book: PlanBook, group: str, size: int, journal: Journal, rule: Callable[[Ruling], None]
    ) -> None:
        self._book = book
        self._group = group
        self._size = size
        self._journal = journal
        self._rule = rule
        self._decider = Decider(book=book, group=group, clock=time.time)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"headway-tuner-{group}")
        self._done: dict[int, DoneOperation] = {}
        self._reports: dict[int, dict[int, EpochReport]] = {}
        self._closed = False

    def record_start(self, settings: Settings) -> None:
        """Journal who takes part, where, and under which settings."""
        given = {name: str(value) for name, value in asdict(settings).items() if value}
        if settings.bitwise:
            given["bitwise_cost"] = f"{self._book.bitwise_cost(TYPICAL_BYTES):+.0%} predicted"
        self._journal.write(self._decider.start_record(settings.policy, given))

    def operation_done(
        self, number: int, collective: Collective, plan: str, size_bytes: int, outcome: OperationOutcome
    ) -> None:
        """Note one operation that is complete here. Progress thread."""
        if size_bytes >= LARGE_BYTES:
            duration_s = outcome.ended_s - outcome.started_s
            self._done[number] = DoneOperation(collective, size_bytes, plan, time.time(), duration_s)

    def receive(self, report: EpochReport) -> None:
        """Take one rank's report; when it is the epoch's last, decide. Progress thread."""
        gathered = self._reports.setdefault(report.epoch, {})
        gathered[report.rank] = report
        if len(gathered) == self._size and not self._closed:
            del self._reports[report.epoch]
            done = {number: each for number, each in self._done.items() if number < report.ruled_from}
            for number in done:
                del self._done[number]
            reports = [gathered[rank] for rank in range(self._size)]
            self._worker.submit(self._decide, report.epoch, report.ruled_from, reports, done)

    def stop(self) -> None:
        """Wait for a decision under way, and end the thread. Reports that come later need no ruling any more."""
        self._closed = True
        self._worker.shutdown(wait=True)

    def record_rest(self) -> None:
        """Journal the operations that no epoch ended after. Call when the progress thread has ended."""
        for record in self._decider.operation_records(self._done):
            self._journal.write(record)

    def _decide(
        self, epoch: int, from_operation: int, reports: Sequence[EpochReport], done: Mapping[int, DoneOperation]
    ) -> None:
        try:
            decision = self._decider.decide(epoch, from_operation, reports, done)
        except Exception as error:
            _log.exception("group %s: the tuner failed in epoch %d; plans stay as they are", self._group, epoch)
            what = f"{type(error).__name__}: {error}"
            self._journal.write(
                FailureRecord(
                    t_s=time.time(),
                    group=self._group,
                    rank=0,
                    blamed_rank=None,
                    operation=f"decision of epoch {epoch}",
                    what=what,
                )
            )
            self._rule(
                Ruling(epoch=epoch, from_operation=from_operation, plans={}, epoch_weight=NEVER_ENDS, lead_operations=0)
            )
            return
        self._rule(decision.ruling)
        for record in self._decider.records(decision):
            self._journal.write(record)
