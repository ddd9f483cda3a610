"""The replicas: which there are, what each was sent, what its engine says, and which may take a request. Pure.

Every count goes up in `dispatched` and comes down in `finished` or `abandoned`, once per request, also where the
replica has left in between. Engine reports age; past `FleetRules.stale_s` they are left out, and the counts remain.
Requests are kept from replicas that fail: see `breaker`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from headway.decide.journal import ServingRecord
from headway.serving.breaker import Breaker, BreakerRules
from headway.serving.policy import Candidate
from headway.serving.prefix import PrefixIndex, Sent
from headway.serving.replica import EngineReport, ReplicaSpec, ReplicaState
from headway.serving.request import End, Request
from headway.serving.words import counted

_Event = Literal["join", "leave", "silent", "heard", "down", "up"]


@dataclass(frozen=True, slots=True)
class FleetRules:
    """When a replica's word, or the replica itself, is left out.

    Attributes:
        stale_s: age from which an engine's report is left out, seconds: 20 polls of 0.1 s.
        breaker: when failures take the replica out, and for how long.
    """

    stale_s: float = 2.0
    breaker: BreakerRules = field(default_factory=BreakerRules)


class Condition(Enum):
    """Whether a replica takes requests."""

    UP = "up"
    DOWN = "down"
    """It failed too often, or was said to be down: none until its back-off is over."""
    TRIAL = "trial"
    """Its back-off is over: one request at a time, until one gets a first token."""
    LEAVING = "leaving"
    """No new ones; those in flight end."""


@dataclass(slots=True, eq=False)
class _Member:
    spec: ReplicaSpec
    breaker: Breaker
    prefill_requests: int = 0
    prefill_tokens: int = 0
    decode_requests: int = 0
    decode_tokens: int = 0
    report: EngineReport | None = None
    reported_s: float = float("-inf")
    silent: bool = False
    leaving: bool = False

    @property
    def requests(self) -> int:
        return self.prefill_requests + self.decode_requests


@dataclass(slots=True)
class _Flight:
    member: _Member
    request: Request
    hit_tokens: int
    sent: Sent
    decoding: bool = False
    output_tokens: int = 0

    @property
    def new_tokens(self) -> int:
        return max(0, self.request.input_tokens - self.hit_tokens)


class Fleet:
    """The replicas behind one router. One thread uses it; `now_s` only goes forward.

    Args:
        rules: when a report is too old, when a replica is down.
        index: the mirror of the replicas' prefix caches, used by this fleet alone.
    """

    def __init__(self, rules: FleetRules | None = None, *, index: PrefixIndex | None = None) -> None:
        self.rules = rules or FleetRules()
        self.index = index or PrefixIndex()
        self._members: dict[str, _Member] = {}
        self._leaving: dict[str, _Member] = {}
        self._flights: dict[str, _Flight] = {}
        self._records: list[ServingRecord] = []

    # Coming and going

    def join(self, spec: ReplicaSpec, now_s: float) -> None:
        """A replica takes requests from now on.

        A name that is known at the same URL gets the new spec and keeps its counts, also where it was leaving; at
        another URL it is another machine: the old one leaves.
        """
        known = self._members.get(spec.name)
        if known is not None:
            if known.spec == spec:
                return
            if known.spec.url == spec.url:
                known.spec = spec
                if spec.cache_tokens is not None:
                    self.index.resize(spec.name, spec.cache_tokens)
                return
            self.leave(spec.name, now_s)
        returning = self._leaving.get(spec.name)
        if returning is not None and returning.spec.url == spec.url:
            member = self._leaving.pop(spec.name)
            member.spec, member.leaving = spec, False
        else:
            member = _Member(spec, Breaker(self.rules.breaker))
        self._members[spec.name] = member
        self.index.join(spec.name, self._cache_tokens(member))
        self._say(now_s, "join", spec.name, f"{spec.name} joined" + (f" at {spec.url}" if spec.url else ""))

    def leave(self, name: str, now_s: float) -> None:
        """A replica takes no new requests; those in flight end. Raises KeyError where it is unknown."""
        member = self._members.pop(name)
        member.leaving = True
        self.index.leave(name)
        if member.requests:
            self._leaving[name] = member
        self._say(now_s, "leave", name, f"{name} leaves with {counted(member.requests, 'request')} in flight")

    def report(self, name: str, report: EngineReport, now_s: float) -> None:
        """What an engine says of itself. Of a replica that has left it is ignored: it may come late."""
        member = self._members.get(name)
        if member is None:
            return
        self._age(member, now_s)
        if member.silent:
            member.silent = False
            self._say(now_s, "heard", name, f"{name} reports its load again")
        before = self._cache_tokens(member)
        member.report, member.reported_s = report, now_s
        after = self._cache_tokens(member)
        if after is not None and after != before:
            self.index.resize(name, after)

    def silent(self, name: str, now_s: float, why: str = "") -> None:
        """An engine's load can't be known (no such page, garbage): its report is left out at once.

        A poll that only fails needs no call: the report's age tells. Of a replica that has left it is ignored.
        """
        member = self._members.get(name)
        if member is not None and not member.silent:
            self._silence(member, now_s, why or "its load can't be read")

    # Requests

    def candidates(self, request: Request, now_s: float, exclude: Collection[str] = frozenset()) -> list[Candidate]:
        """Those that may answer, in order of joining, with the tokens that each probably has cached.

        Left out: replicas that don't serve the model, that are down or leaving, that have their one request on trial,
        or that are in `exclude`.
        """
        hits = self.index.all_hits(request)
        return [
            Candidate(self._state(member, now_s), hits.get(name, 0))
            for name, member in self._members.items()
            if name not in exclude and serves(member.spec, request.model) and member.breaker.admits(now_s)
        ]

    def dispatched(self, request: Request, replica: str, hit_tokens: int, now_s: float) -> None:
        """A request goes to a replica, which is expected to have `hit_tokens` of its prompt.

        Raises KeyError where the replica is unknown, ValueError where a request of that id is in flight.
        """
        if request.id in self._flights:
            raise ValueError(f"request {request.id!r} is in flight already")
        member = self._members[replica]
        member.breaker.dispatched(request.id)
        flight = _Flight(member, request, hit_tokens, self.index.sent(request, replica))
        self._flights[request.id] = flight
        member.prefill_requests += 1
        member.prefill_tokens += flight.new_tokens

    def first_token(self, request_id: str, now_s: float) -> None:
        """Its first token has come. Raises KeyError where it is unknown, ValueError where it had one."""
        flight = self._flights[request_id]
        if flight.decoding:
            raise ValueError(f"request {request_id!r} had a first token already")
        member = flight.member
        member.prefill_requests -= 1
        member.prefill_tokens -= flight.new_tokens
        flight.decoding, flight.output_tokens = True, 1
        member.decode_requests += 1
        member.decode_tokens += flight.request.input_tokens + 1
        if self._mirrored(flight):
            self.index.computed(member.spec.name, flight.sent)
        if member.breaker.first_token(request_id):
            self._closed(member, now_s, "answers again")

    def progress(self, request_id: str, output_tokens: int) -> None:
        """So many tokens of its answer have come in all. Fewer than before are ignored; before the first token too."""
        flight = self._flights[request_id]
        more = output_tokens - flight.output_tokens
        if flight.decoding and more > 0:
            flight.output_tokens += more
            flight.member.decode_tokens += more

    def finished(
        self,
        request_id: str,
        now_s: float,
        *,
        end: End = End.DONE,
        output_tokens: int = 0,
        cached_tokens: int | None = None,
        why: str = "",
    ) -> None:
        """A request has ended, well or not. Raises KeyError where it is unknown.

        Args:
            request_id, now_s: which, and when.
            end: FAILED counts against the replica, DONE clears its failures, CANCELLED says nothing of it.
            output_tokens: its answer's tokens.
            cached_tokens: prompt tokens that the engine found in its cache; None where it didn't say.
            why: what failed, for the journal.
        """
        flight = self._land(request_id)
        member = flight.member
        if self._mirrored(flight):
            answered = end is End.DONE and (output_tokens > 0 or cached_tokens is not None)
            if flight.decoding or answered:
                self.index.ended(
                    flight.request,
                    member.spec.name,
                    flight.sent,
                    output_tokens=max(output_tokens, flight.output_tokens),
                    hit_tokens=flight.hit_tokens,
                    cached_tokens=cached_tokens,
                )
            else:
                self.index.unsent(flight.request, member.spec.name, flight.sent)
        on_trial = member.breaker.ended(request_id)
        if end is End.FAILED:
            self._failed(member, now_s, on_trial, why)
        elif end is End.DONE and member.breaker.succeeded(on_trial=on_trial):
            self._closed(member, now_s, "answers again")

    def abandoned(self, request_id: str, now_s: float) -> None:
        """A request was never sent to its replica: as if it had not been dispatched. Raises KeyError: unknown."""
        flight = self._land(request_id)
        if self._mirrored(flight):
            self.index.unsent(flight.request, flight.member.spec.name, flight.sent)
        flight.member.breaker.ended(request_id)

    # Up and down

    def down(self, name: str, now_s: float, why: str = "said to be down") -> None:
        """A replica takes no requests until `up`: for those who know better than its answers. KeyError: unknown."""
        member = self._members[name]
        if member.breaker.until_s != float("inf"):
            member.breaker.hold(float("inf"))
            self._opened(member, now_s, why)

    def blamed(self, name: str, now_s: float, why: str) -> None:
        """A failure that turned out to be the replica's after its request had ended. Of one that has left: ignored."""
        member = self._members.get(name)
        if member is not None:
            self._failed(member, now_s, member.breaker.due(now_s), why)

    def up(self, name: str, now_s: float) -> None:
        """A replica takes requests again, and its failures are forgotten. Raises KeyError where it is unknown."""
        member = self._members[name]
        if member.breaker.reset():
            self._closed(member, now_s, "is up again")

    # What there is to see

    @property
    def names(self) -> tuple[str, ...]:
        """The replicas, in order of joining; without those that leave."""
        return tuple(self._members)

    @property
    def in_flight(self) -> int:
        """Requests that were dispatched and have not ended (count)."""
        return len(self._flights)

    def models(self) -> tuple[str, ...]:
        """Names of models that any replica lists, sorted; a replica that serves any model lists none."""
        return tuple(sorted({model for member in self._members.values() for model in member.spec.models}))

    def state(self, name: str, now_s: float) -> ReplicaState:
        """A replica as policies see it, also while it leaves. Raises KeyError where it is unknown."""
        return self._state(self._find(name), now_s)

    def states(self, now_s: float) -> list[ReplicaState]:
        """All replicas, those that leave last."""
        return [self._state(member, now_s) for member in (*self._members.values(), *self._leaving.values())]

    def condition(self, name: str, now_s: float) -> Condition:
        """Whether a replica takes requests. Raises KeyError where it is unknown."""
        member = self._find(name)
        if member.leaving:
            return Condition.LEAVING
        if member.breaker.until_s is None:
            return Condition.UP
        return Condition.TRIAL if member.breaker.due(now_s) else Condition.DOWN

    def retry_s(self, model: str, now_s: float) -> float | None:
        """Seconds until a replica that serves the model may take a request: 0 when one may now or is on trial; None
        when none serves it, infinite when those that do are down until further notice."""
        until_s = [member.breaker.until_s for member in self._members.values() if serves(member.spec, model)]
        return min((0.0 if each is None else max(0.0, each - now_s) for each in until_s), default=None)

    def records(self) -> list[ServingRecord]:
        """What has happened since the last call."""
        records, self._records = self._records, []
        return records

    # Inside

    def _find(self, name: str) -> _Member:
        member = self._members.get(name)
        return self._leaving[name] if member is None else member

    def _cache_tokens(self, member: _Member) -> int | None:
        """The spec's word first: it may say 0 where the engine reports the size of its KV cache."""
        if member.spec.cache_tokens is not None:
            return member.spec.cache_tokens
        return member.report.cache_tokens if member.report is not None else None

    def _mirrored(self, flight: _Flight) -> bool:
        """Whether the index still holds what it was told of this request: not once the replica has left."""
        return self._members.get(flight.member.spec.name) is flight.member

    def _state(self, member: _Member, now_s: float) -> ReplicaState:
        self._age(member, now_s)
        return ReplicaState(
            member.spec,
            member.prefill_requests,
            member.prefill_tokens,
            member.decode_requests,
            member.decode_tokens,
            None if member.silent else member.report,
            now_s - member.reported_s,
        )

    def _age(self, member: _Member, now_s: float) -> None:
        age_s = now_s - member.reported_s
        if member.report is not None and not member.silent and age_s > self.rules.stale_s:
            self._silence(member, now_s, f"its last report is {age_s:.1f} s old")

    def _silence(self, member: _Member, now_s: float, why: str) -> None:
        member.silent = True
        self._say(now_s, "silent", member.spec.name, f"{member.spec.name}'s own figures are left out: {why}")

    def _land(self, request_id: str) -> _Flight:
        flight = self._flights.pop(request_id)
        member = flight.member
        if flight.decoding:
            member.decode_requests -= 1
            member.decode_tokens -= flight.request.input_tokens + flight.output_tokens
        else:
            member.prefill_requests -= 1
            member.prefill_tokens -= flight.new_tokens
        if member.leaving and not member.requests and self._leaving.get(member.spec.name) is member:
            del self._leaving[member.spec.name]
        return flight

    def _failed(self, member: _Member, now_s: float, on_trial: bool, why: str) -> None:
        if member.leaving:
            return
        wait_s = member.breaker.failed(now_s, on_trial=on_trial)
        if wait_s is not None:
            what = f"{member.breaker.failures} failures in sequence" + (f", the last: {why}" if why else "")
            self._opened(member, now_s, f"{what}; next trial in {wait_s:g} s")

    def _opened(self, member: _Member, now_s: float, why: str) -> None:
        self.index.forget(member.spec.name)
        self._say(now_s, "down", member.spec.name, f"{member.spec.name} takes no requests: {why}")

    def _closed(self, member: _Member, now_s: float, what: str) -> None:
        if not member.leaving:
            self._say(now_s, "up", member.spec.name, f"{member.spec.name} {what}")

    def _say(self, now_s: float, event: _Event, name: str, what: str) -> None:
        self._records.append(ServingRecord(t_s=now_s, event=event, replica=name, what=what))


def serves(spec: ReplicaSpec, model: str) -> bool:
    """Whether a replica serves a model."""
    return not spec.models or model in spec.models
