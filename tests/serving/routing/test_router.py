"""A request's way through the router, and what the journal says of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.decide.journal import MemoryJournal, Record, RequestRecord, ServingRecord, parse_lines, to_line
from headway.errors import HeadwayError
from headway.serving.fleet import Fleet
from headway.serving.policies import build
from headway.serving.policies.rule import Rule
from headway.serving.policy import Candidate, Choice
from headway.serving.prefix import chain
from headway.serving.replica import EngineReport, ReplicaSpec
from headway.serving.request import End, Outcome, Request
from headway.serving.router import NOT_SENT_STATUS, NoReplicaError, Router


class Noted(Rule):
    """Chooses the first candidate and notes what it is told."""

    name = "noted"

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.first_tokens: list[tuple[str, float]] = []

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        scores = {candidate.name: float(-k) for k, candidate in enumerate(candidates)}
        return Choice(candidates[0].name, "the first", "a rule", scores, 0.25)

    def observe(self, outcome: Outcome, now_s: float) -> None:
        self.outcomes.append(outcome)

    def first_token(self, request_id: str, ttft_s: float, now_s: float) -> None:
        self.first_tokens.append((request_id, ttft_s))

    def records(self) -> list[ServingRecord]:
        if len(self.outcomes) != 1:
            return []
        return [ServingRecord(t_s=1.0, event="model", policy=self.name, what="learnt")]


class BrokenJournal:
    dropped = 0

    def write(self, record: Record) -> None:
        raise OSError("disk full")


def router(*names: str) -> tuple[Router, Noted, MemoryJournal]:
    policy, journal = Noted(), MemoryJournal()
    made = Router(Fleet(), policy, journal=journal)
    for name in names:
        made.join(ReplicaSpec(name, cache_tokens=10_000), 100.0)
    journal.records.clear()
    return made, policy, journal


def asked(id_: str = "q", model: str = "m") -> Request:
    return Request(id_, model, 160, chain(range(10)), 16, session="s", slo_ttft_s=0.5, slo_tpot_s=0.05, workflow="w")


def last(journal: MemoryJournal) -> RequestRecord:
    [record] = [record for record in journal.records if isinstance(record, RequestRecord)]
    assert list(parse_lines([to_line(record)], where="j")) == [record]
    return record


def test_an_answer_from_arrival_to_end() -> None:
    made, policy, journal = router("a", "b")
    made.report("b", EngineReport(running=3, waiting=1, kv_usage=0.5), 100.0)
    choice = made.route(asked(), 101.0, arrived_s=100.75)
    assert choice.replica == "a"
    assert made.in_flight == 1
    made.first_token("q", 101.5)
    made.progress("q", 5)
    outcome = made.finished("q", 102.0, cached_tokens=16)
    assert made.in_flight == made.fleet.in_flight == 0
    assert outcome == Outcome(asked(), "a", 101.0, 0.5, 1.0, 5, 16, End.DONE)
    assert policy.outcomes == [outcome]
    assert policy.first_tokens == [("q", 0.5)]
    record = last(journal)
    assert (record.group, record.request, record.replica, record.policy, record.by) == (
        "m",
        "q",
        "a",
        "noted",
        "a rule",
    )
    assert (record.t_s, record.arrived_s, record.sent_s, record.ttft_s, record.e2e_s) == (
        102.0,
        100.75,
        0.25,
        0.75,
        1.25,
    )
    assert (record.status, record.end, record.attempts, record.reason) == (200, "done", 1, "the first")
    assert (record.input_tokens, record.output_tokens, record.hit_tokens, record.cached_tokens) == (160, 5, 0, 16)
    assert (record.slo_ttft_s, record.slo_tpot_s, record.session, record.workflow) == (0.5, 0.05, "s", "w")
    assert record.predicted_ttft_s == 0.25
    assert record.prefix_blocks == []
    assert record.block_tokens is None
    first, second = record.options
    assert (first.replica, first.score, first.running, first.waiting, first.kv_usage) == ("a", 0.0, None, None, None)
    assert (second.replica, second.score, second.running, second.waiting, second.kv_usage) == ("b", -1.0, 3, 1, 0.5)
    assert [r.event for r in journal.records if isinstance(r, ServingRecord)] == ["model"]


def test_the_options_are_those_of_the_decision() -> None:
    made, _, journal = router("a")
    made.route(asked("one"), 101.0)
    made.route(asked("two"), 101.0)
    made.finished("two", 102.0)
    [option] = last(journal).options
    assert (option.requests, option.hit_tokens) == (1, 144)


def test_again_on_another_replica() -> None:
    made, policy, journal = router("a", "b")
    made.route(asked(), 101.0)
    second = made.route(asked(), 101.5, exclude={"a"}, why="refused")
    assert second.replica == "b"
    assert [(outcome.replica, outcome.end, outcome.ttft_s) for outcome in policy.outcomes] == [("a", End.FAILED, None)]
    assert made.fleet.state("a", 101.5).requests == 0
    made.first_token("q", 102.0)
    made.finished("q", 103.0, output_tokens=3)
    record = last(journal)
    assert (record.replica, record.attempts, record.sent_s, record.ttft_s) == ("b", 2, 0.5, 1.0)
    assert policy.first_tokens == [("q", 0.5)]
    assert [option.replica for option in record.options] == ["b"]


def test_failed_attempts_count_against_the_replica() -> None:
    made, _, journal = router("a", "b")
    for number in range(3):
        made.route(asked(f"q{number}"), 101.0)
        made.route(asked(f"q{number}"), 101.0, exclude={"a"}, why="connection refused")
        made.finished(f"q{number}", 101.0)
    assert [option.name for option in made.fleet.candidates(asked(), 101.5)] == ["b"]
    [down] = [record for record in journal.records if isinstance(record, ServingRecord) and record.event == "down"]
    assert "connection refused" in down.what


def test_nobody_left_to_try() -> None:
    made, policy, journal = router("a")
    made.route(asked(), 101.0)
    with pytest.raises(NoReplicaError, match="no other replica for the model 'm' than a can") as raised:
        made.route(asked(), 102.0, exclude={"a"})
    assert raised.value.retry_s == 0.0
    assert made.in_flight == 1
    assert len(policy.outcomes) == 1
    assert made.finished("q", 103.0, end=End.FAILED, status=502) is None
    record = last(journal)
    assert (record.end, record.status, record.attempts, record.replica) == ("failed", 502, 1, "a")
    assert len(policy.outcomes) == 1


def test_no_replica() -> None:
    made, policy, journal = router()
    with pytest.raises(NoReplicaError, match="no replica serves the model 'm'") as raised:
        made.route(asked(), 101.0)
    assert raised.value.retry_s is None
    assert made.in_flight == 0
    made.join(ReplicaSpec("a"), 101.0)
    made.down("a", 101.0)
    with pytest.raises(NoReplicaError, match="can answer now") as raised:
        made.route(asked(), 101.0)
    assert raised.value.retry_s == float("inf")
    made.refused(asked(), 102.0, status=503, reason="no replica", arrived_s=101.0)
    record = last(journal)
    assert (record.end, record.status, record.replica, record.attempts) == ("refused", 503, "", 0)
    assert (record.reason, record.e2e_s) == ("no replica", 1.0)
    assert policy.outcomes == []
    made.up("a", 103.0)
    assert made.route(asked(), 103.0).replica == "a"


def test_refused_after_it_was_routed() -> None:
    made, policy, journal = router("a")
    made.route(asked(), 101.0)
    made.refused(asked(), 102.0, status=503, reason="all failed")
    assert made.in_flight == made.fleet.in_flight == 0
    record = last(journal)
    assert (record.end, record.reason, record.attempts, record.replica) == ("refused", "all failed", 1, "a")
    assert [outcome.end for outcome in policy.outcomes] == [End.FAILED]


def test_given_up_before_it_was_sent() -> None:
    made, policy, journal = router("a")
    made.route(asked(), 101.0)
    made.abandon("q", 101.5)
    assert made.fleet.state("a", 101.5).requests == 0
    record = last(journal)
    assert (record.end, record.status) == ("cancelled", NOT_SENT_STATUS)
    assert [(outcome.end, outcome.ttft_s) for outcome in policy.outcomes] == [(End.CANCELLED, None)]


def test_cut_off_by_the_client() -> None:
    made, _, journal = router("a")
    made.route(asked(), 101.0)
    made.first_token("q", 101.5)
    made.finished("q", 102.0, end=End.CANCELLED, status=200, output_tokens=7)
    record = last(journal)
    assert (record.end, record.output_tokens, record.ttft_s) == ("cancelled", 7, 0.5)


def test_unknown_requests_are_errors() -> None:
    made, _, _ = router("a")
    for call in (made.first_token, made.finished, made.abandon):
        with pytest.raises(KeyError):
            call("q", 101.0)
    with pytest.raises(KeyError):
        made.progress("q", 1)
    made.route(asked(), 101.0)
    made.first_token("q", 102.0)
    with pytest.raises(ValueError, match="first token"):
        made.route(asked(), 103.0)
    with pytest.raises(ValueError, match="first token"):
        made.first_token("q", 103.0)
    assert made.in_flight == 1


def test_a_policy_that_chooses_nobody_is_an_error() -> None:
    class Astray(Noted):
        def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
            return Choice("elsewhere", "", self.name)

    made = Router(Fleet(), Astray())
    made.join(ReplicaSpec("a"), 100.0)
    with pytest.raises(HeadwayError, match="'elsewhere', which is no candidate"):
        made.route(asked(), 101.0)
    assert made.in_flight == made.fleet.in_flight == 0


def test_a_broken_journal_costs_no_request() -> None:
    made = Router(Fleet(), build("round-robin"), journal=BrokenJournal())
    made.join(ReplicaSpec("a"), 100.0)
    made.route(asked(), 101.0)
    made.finished("q", 102.0)
    assert made.journal_errors == 2


def test_without_a_journal_nothing_piles_up() -> None:
    made = Router(Fleet(), build("round-robin"))
    made.join(ReplicaSpec("a"), 100.0)
    made.leave("a", 100.0)
    assert made.fleet.records() == []


def test_blocks_are_recorded_where_wanted() -> None:
    journal = MemoryJournal()
    made = Router(Fleet(), build("round-robin"), journal=journal, record_blocks=True)
    made.join(ReplicaSpec("a"), 100.0)
    made.route(asked(), 101.0)
    made.finished("q", 102.0)
    assert last(journal).prefix_blocks == list(chain(range(10)))
    assert last(journal).block_tokens == 16


def test_replicas_pass_through() -> None:
    made, _, journal = router("a")
    made.report("a", EngineReport(1, 0), 101.0)
    made.silent("a", 101.0, "garbage")
    made.report("a", EngineReport(1, 0), 101.5)
    made.down("a", 102.0, "not ready")
    made.up("a", 103.0)
    made.leave("a", 104.0)
    events = [record.event for record in journal.records if isinstance(record, ServingRecord)]
    assert events == ["silent", "heard", "down", "up", "leave"]
