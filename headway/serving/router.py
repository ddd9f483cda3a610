"""One request's way from its arrival to its end: which replica, what became of it, what the journal says. Pure.

The gateway and the simulation call the same object, in this order for each request:

    route ------> first_token -> progress ... -> finished     answered, cut off, or failed for good
      |   |
      |   `-----> route (same id)                             the attempt failed before the first byte: try another
      `---------> abandon                                     the client went away before anything was sent
    refused                                                   never routed: no replica, a limit, a bad request

One thread calls it, with a clock in seconds since the epoch that only goes forward.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from headway.decide.journal import Journal, Record, RequestRecord
from headway.errors import HeadwayError
from headway.serving.fleet import Fleet
from headway.serving.flight import Attempt, Flight
from headway.serving.policy import Choice, Policy
from headway.serving.replica import EngineReport, ReplicaSpec
from headway.serving.request import End, Outcome, Request

NOT_SENT_STATUS = 499
"""Status in the journal of a request whose client went away before it was sent; nginx's number for it."""


class NoReplicaError(HeadwayError):
    """No replica may take a request now.

    Args:
        what: why not.
        model: the request's model.
        retry_s: seconds until one may: 0 when those that could are being tried now, infinite when none will without a
            change from outside, None when no replica serves the model at all.
    """

    def __init__(self, what: str, *, model: str, retry_s: float | None) -> None:
        self.what, self.model, self.retry_s = what, model, retry_s
        super().__init__(what)


class Router:
    """Routes requests over a fleet by a policy, and writes down what came of it.

    Requests in flight are kept until `finished`, `abandon` or `refused`: the caller bounds how many there are.

    Args:
        fleet: the replicas.
        policy: chooses one for each request.
        journal: where `RequestRecord` and `ServingRecord` go; None: nowhere. It can't make a request fail: what it
            raises is counted in `journal_errors`.
        record_blocks: whether request records hold the prompts' block hashes, which makes a journal a load that can be
            played again, and some 10 KB longer for each long prompt.
    """

    def __init__(
        self, fleet: Fleet, policy: Policy, *, journal: Journal | None = None, record_blocks: bool = False
    ) -> None:
        self.fleet = fleet
        self.policy = policy
        self.journal_errors = 0
        self._journal = journal
        self._record_blocks = record_blocks
        self._flights: dict[str, Flight] = {}

    @property
    def in_flight(self) -> int:
        """Requests that were routed and have not ended (count)."""
        return len(self._flights)

    # Replicas

    def join(self, spec: ReplicaSpec, now_s: float) -> None:
        """As `Fleet.join`."""
        self.fleet.join(spec, now_s)
        self._drain()

    def leave(self, name: str, now_s: float) -> None:
        """As `Fleet.leave`."""
        self.fleet.leave(name, now_s)
        self._drain()

    def report(self, name: str, report: EngineReport, now_s: float) -> None:
        """As `Fleet.report`."""
        self.fleet.report(name, report, now_s)
        self._drain()

    def silent(self, name: str, now_s: float, why: str = "") -> None:
        """As `Fleet.silent`."""
        self.fleet.silent(name, now_s, why)
        self._drain()

    def down(self, name: str, now_s: float, why: str = "said to be down") -> None:
        """As `Fleet.down`."""
        self.fleet.down(name, now_s, why)
        self._drain()

    def blamed(self, name: str, now_s: float, why: str) -> None:
        """As `Fleet.blamed`."""
        self.fleet.blamed(name, now_s, why)
        self._drain()

    def up(self, name: str, now_s: float) -> None:
        """As `Fleet.up`."""
        self.fleet.up(name, now_s)
        self._drain()

    # Requests

    def route(
        self,
        request: Request,
        now_s: float,
        exclude: Collection[str] = frozenset(),
        *,
        arrived_s: float | None = None,
        why: str = "",
        before: End = End.FAILED,
    ) -> Choice:
        """Who answers; from now on it counts as sent there.

        Again with the same id: the attempt before has failed, which counts against its replica. After NoReplicaError
        on such a second call the request is still in flight, and ends with `finished` or `refused`; on a first call
        it is not.

        Args:
            request, now_s: what, and when.
            exclude: replicas that must not answer, as those that failed before.
            arrived_s: when the request came, where that was before `now_s`.
            why: why the attempt before failed, for the journal.
            before: how it ended: CANCELLED where that says nothing against its replica, as when it was too busy.

        Raises NoReplicaError; ValueError where the attempt before had its first token.
        """
        flight = self._flights.get(request.id)
        if flight is not None:
            if flight.attempt.first_token_s is not None:
                raise ValueError(f"request {request.id!r} had a first token: it can't be routed again")
            self._give_up(flight, now_s, before, why)
        candidates = self.fleet.candidates(request, now_s, exclude)
        if not candidates:
            self._drain()
            raise self._nobody(request, now_s, exclude)
        choice = self.policy.choose(request, candidates, now_s)
        hits = [candidate.hit_tokens for candidate in candidates if candidate.name == choice.replica]
        if not hits:
            raise HeadwayError(f"policy {self.policy.name} chose {choice.replica!r}, which is no candidate")
        self.fleet.dispatched(request, choice.replica, hits[0], now_s)
        attempt = Attempt(choice, candidates, hits[0], now_s)
        if flight is None:
            arrived_s = now_s if arrived_s is None else arrived_s
            self._flights[request.id] = Flight(request, arrived_s, 1, attempt)
        else:
            flight.attempts, flight.attempt, flight.live = flight.attempts + 1, attempt, True
        self._drain()
        return choice

    def first_token(self, request_id: str, now_s: float) -> None:
        """The first token of a request has come. Raises KeyError: unknown; ValueError: it came already."""
        flight = self._flights[request_id]
        self.fleet.first_token(request_id, now_s)
        flight.attempt.first_token_s, flight.attempt.output_tokens = now_s, 1
        self.policy.first_token(request_id, now_s - flight.attempt.sent_s, now_s)
        self._drain()

    def progress(self, request_id: str, output_tokens: int) -> None:
        """So many tokens of its answer have come in all. Raises KeyError where it is unknown."""
        attempt = self._flights[request_id].attempt
        attempt.output_tokens = max(attempt.output_tokens, output_tokens)
        self.fleet.progress(request_id, output_tokens)

    def finished(
        self,
        request_id: str,
        now_s: float,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        end: End = End.DONE,
        status: int = 200,
        why: str = "",
        counts: bool = True,
    ) -> Outcome | None:
        """A request has ended. Raises KeyError where it is unknown.

        Args:
            request_id, now_s: which, and when.
            input_tokens: the prompt's, as the engine counted them, for the journal; None where it didn't say.
            output_tokens: its answer's tokens; None: as many as `progress` said.
            cached_tokens: prompt tokens that the engine found in its cache; None where it didn't say.
            end: FAILED counts against the replica; an answer that only says the request was wrong is DONE.
            status: HTTP status that the client got.
            why: what failed, for the journal.
            counts: whether FAILED says something of the replica; where not, fleet and policy hear CANCELLED.

        Returns what the policy was told, None where the last attempt had ended before.
        """
        flight = self._flights.pop(request_id)
        if output_tokens is not None:
            flight.attempt.output_tokens = output_tokens
        said = end if counts or end is not End.FAILED else End.CANCELLED
        outcome = self._end(flight, now_s, said, cached_tokens, why) if flight.live else None
        self._tell(flight, now_s, end.value, status, input_tokens=input_tokens, cached_tokens=cached_tokens)
        self._drain()
        return outcome

    def abandon(self, request_id: str, now_s: float, *, status: int = NOT_SENT_STATUS, refused: str = "") -> None:
        """A request ends before it was sent: as if it had not been routed, but for the journal.

        The policy observes it as cancelled without a first token. Raises KeyError where it is unknown.

        Args:
            request_id, now_s: which, and when.
            status: HTTP status that the client got; by default it went away.
            refused: why it was turned away; empty: it wasn't, the client went away.
        """
        flight = self._flights.pop(request_id)
        if flight.live:
            self.fleet.abandoned(request_id, now_s)
            self.policy.observe(flight.outcome(now_s, End.CANCELLED, None), now_s)
        end: Literal["cancelled", "refused"] = "refused" if refused else "cancelled"
        self._tell(flight, now_s, end, status, reason=refused or None)
        self._drain()

    def refused(
        self, request: Request, now_s: float, *, status: int, reason: str, arrived_s: float | None = None
    ) -> None:
        """A request was turned away: a limit, or no replica. One that was routed before ends with this.

        Args:
            request, now_s: which, and when.
            status: HTTP status that the client got.
            reason: why, in a few words.
            arrived_s: when it came, where that was before `now_s`.
        """
        flight = self._flights.pop(request.id, None)
        if flight is not None:
            if flight.live:
                self._end(flight, now_s, End.FAILED, None, reason)
            self._tell(flight, now_s, "refused", status, reason=reason)
        else:
            arrived_s = now_s if arrived_s is None else arrived_s
            self._write(
                RequestRecord(
                    t_s=now_s,
                    group=request.model,
                    request=request.id,
                    arrived_s=arrived_s,
                    policy=self.policy.name,
                    reason=reason,
                    input_tokens=request.input_tokens,
                    e2e_s=now_s - arrived_s,
                    slo_ttft_s=request.slo_ttft_s,
                    slo_tpot_s=request.slo_tpot_s,
                    status=status,
                    end="refused",
                    attempts=0,
                    session=request.session,
                    workflow=request.workflow,
                    prefix_blocks=list(request.blocks) if self._record_blocks else [],
                    block_tokens=request.block_tokens if self._record_blocks else None,
                )
            )
        self._drain()

    # Inside

    def _give_up(self, flight: Flight, now_s: float, end: End, why: str) -> None:
        if flight.live:
            self._end(flight, now_s, end, None, why)
            flight.live = False

    def _end(self, flight: Flight, now_s: float, end: End, cached_tokens: int | None, why: str) -> Outcome:
        self.fleet.finished(
            flight.request.id,
            now_s,
            end=end,
            output_tokens=flight.attempt.output_tokens,
            cached_tokens=cached_tokens,
            why=why,
        )
        outcome = flight.outcome(now_s, end, cached_tokens)
        self.policy.observe(outcome, now_s)
        return outcome

    def _nobody(self, request: Request, now_s: float, exclude: Collection[str]) -> NoReplicaError:
        retry_s = self.fleet.retry_s(request.model, now_s)
        if retry_s is None:
            what = f"no replica serves the model {request.model!r}"
        elif exclude:
            what = f"no other replica for the model {request.model!r} than {', '.join(sorted(exclude))} can answer now"
        else:
            what = f"no replica for the model {request.model!r} can answer now"
        return NoReplicaError(what, model=request.model, retry_s=retry_s)

    def _tell(
        self,
        flight: Flight,
        now_s: float,
        end: Literal["done", "cancelled", "failed", "refused"],
        status: int,
        *,
        input_tokens: int | None = None,
        cached_tokens: int | None = None,
        reason: str | None = None,
    ) -> None:
        if self._journal is None:
            return
        self._write(
            flight.record(
                now_s,
                policy=self.policy.name,
                end=end,
                status=status,
                blocks=self._record_blocks,
                input_tokens=input_tokens,
                cached_tokens=cached_tokens,
                reason=reason,
            )
        )

    def _drain(self) -> None:
        """What the fleet and the policy have to say goes to the journal; without one it is let go."""
        for record in (*self.fleet.records(), *self.policy.records()):
            self._write(record)

    def _write(self, record: Record) -> None:
        if self._journal is None:
            return
        try:
            self._journal.write(record)
        except Exception:  # a journal that breaks its promise must not cost a request; it is counted instead
            self.journal_errors += 1
