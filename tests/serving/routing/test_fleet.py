"""The fleet: counts, stale reports, the circuit breaker, coming and going."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.serving.breaker import BreakerRules
from headway.serving.fleet import Condition, Fleet, FleetRules
from headway.serving.prefix import chain
from headway.serving.replica import EngineReport, ReplicaSpec
from headway.serving.request import End, Request

RULES = FleetRules(stale_s=2.0, breaker=BreakerRules(failures=3, backoff_s=1.0, most_backoff_s=5.0))


def fleet(*names: str) -> Fleet:
    made = Fleet(RULES)
    for name in names:
        made.join(ReplicaSpec(name, cache_tokens=10_000), 0.0)
    made.records()
    return made


def request(id_: str, *, tokens: int = 100, model: str = "m", blocks: tuple[int, ...] = ()) -> Request:
    return Request(id_, model, tokens, blocks, 16)


def names(made: Fleet, now_s: float, model: str = "m", exclude: frozenset[str] = frozenset()) -> list[str]:
    return [candidate.name for candidate in made.candidates(request("?", model=model), now_s, exclude)]


def fail(made: Fleet, name: str, now_s: float, times: int = 1) -> None:
    for number in range(times):
        made.dispatched(request(f"f{number}"), name, 0, now_s)
        made.finished(f"f{number}", now_s, end=End.FAILED, why="refused")


def test_counts_follow_a_request() -> None:
    made = fleet("a")
    made.dispatched(request("q", tokens=100), "a", 64, 0.0)
    state = made.state("a", 0.0)
    assert (state.prefill_requests, state.prefill_tokens, state.decode_requests, state.decode_tokens) == (1, 36, 0, 0)
    made.first_token("q", 1.0)
    state = made.state("a", 1.0)
    assert (state.prefill_requests, state.prefill_tokens, state.decode_requests, state.decode_tokens) == (0, 0, 1, 101)
    made.progress("q", 7)
    made.progress("q", 5)
    assert made.state("a", 1.0).decode_tokens == 107
    made.finished("q", 2.0, output_tokens=9)
    assert made.state("a", 2.0) == replace(made.state("a", 2.0), decode_requests=0, decode_tokens=0)
    assert made.in_flight == 0


def test_expected_hits_are_in_the_candidates() -> None:
    made = fleet("a", "b")
    blocks = chain(range(10))
    made.dispatched(request("q", tokens=160, blocks=blocks), "b", 0, 0.0)
    found = made.candidates(request("r", tokens=160, blocks=blocks), 0.0)
    assert [(candidate.name, candidate.hit_tokens) for candidate in found] == [("a", 0), ("b", 144)]


def test_a_request_that_is_not_sent_leaves_no_trace() -> None:
    made = fleet("a")
    blocks = chain(range(10))
    made.dispatched(request("q", tokens=160, blocks=blocks), "a", 0, 0.0)
    made.abandoned("q", 0.0)
    assert made.state("a", 0.0).requests == 0
    assert made.candidates(request("r", tokens=160, blocks=blocks), 0.0)[0].hit_tokens == 0


def test_a_prompt_that_the_engine_turned_down_is_not_cached_but_an_answer_in_one_piece_is() -> None:
    made = fleet("a")
    blocks = chain(range(10))
    for output_tokens, hit_tokens in ((0, 0), (5, 144)):
        made.dispatched(request("q", tokens=160, blocks=blocks), "a", 0, 0.0)
        made.finished("q", 0.1, output_tokens=output_tokens)
        assert made.candidates(request("r", tokens=160, blocks=blocks), 0.2)[0].hit_tokens == hit_tokens


def test_models_and_exclusion() -> None:
    made = Fleet(RULES)
    made.join(ReplicaSpec("any"), 0.0)
    made.join(ReplicaSpec("x", models=("x", "y")), 0.0)
    assert names(made, 0.0, "x") == ["any", "x"]
    assert names(made, 0.0, "z") == ["any"]
    assert names(made, 0.0, "x", frozenset({"any"})) == ["x"]
    assert made.models() == ("x", "y")


def test_unknown_and_double_are_errors() -> None:
    made = fleet("a")
    with pytest.raises(KeyError):
        made.dispatched(request("q"), "b", 0, 0.0)
    made.dispatched(request("q"), "a", 0, 0.0)
    with pytest.raises(ValueError, match="in flight already"):
        made.dispatched(request("q"), "a", 0, 0.0)
    made.first_token("q", 1.0)
    with pytest.raises(ValueError, match="first token already"):
        made.first_token("q", 1.0)
    made.finished("q", 1.0)
    for call in (made.finished, made.first_token, made.abandoned):
        with pytest.raises(KeyError):
            call("q", 1.0)
    with pytest.raises(KeyError):
        made.progress("q", 1)
    with pytest.raises(KeyError):
        made.leave("b", 1.0)


def test_a_report_ages_and_is_left_out() -> None:
    made = fleet("a")
    assert made.state("a", 0.0).report is None
    report = EngineReport(running=4, waiting=2, kv_usage=0.5)
    made.report("a", report, 1.0)
    state = made.state("a", 3.0)
    assert (state.report, state.report_age_s, state.running, state.waiting) == (report, 2.0, 4, 2)
    assert made.records() == []
    state = made.state("a", 3.1)
    assert state.report is None
    assert state.report_age_s == pytest.approx(2.1)
    assert (state.running, state.waiting) == (0, 0)
    assert [record.event for record in made.records()] == ["silent"]
    made.state("a", 4.0)
    assert made.records() == []
    made.report("a", report, 5.0)
    assert [record.event for record in made.records()] == ["heard"]
    assert made.state("a", 5.0).report == report


def test_what_cannot_be_read_is_left_out_at_once() -> None:
    made = fleet("a")
    made.report("a", EngineReport(1, 0), 1.0)
    made.silent("a", 1.1, "garbage")
    made.silent("a", 1.2, "garbage")
    assert made.state("a", 1.2).report is None
    assert ["garbage" in record.what for record in made.records()] == [True]


def test_a_late_report_of_one_that_has_left_is_no_error() -> None:
    made = fleet("a")
    made.leave("a", 0.0)
    made.report("a", EngineReport(1, 0), 0.1)
    made.silent("a", 0.1)
    assert made.names == ()


def test_the_engine_tells_the_size_of_its_cache_unless_the_spec_does() -> None:
    made = Fleet(RULES)
    made.join(ReplicaSpec("told"), 0.0)
    made.join(ReplicaSpec("off", cache_tokens=0), 0.0)
    blocks = chain(range(10))
    for name in ("told", "off"):
        made.report(name, EngineReport(0, 0, cache_tokens=48), 0.0)
        made.dispatched(request(name, tokens=160, blocks=blocks), name, 0, 0.0)
    assert made.index.used_tokens("told") == 48
    assert made.index.used_tokens("off") == 0


def test_a_replica_that_fails_is_left_out_for_a_back_off_that_grows() -> None:
    made = fleet("a", "b")
    fail(made, "a", 10.0, times=2)
    assert names(made, 10.0) == ["a", "b"]
    fail(made, "a", 10.0)
    assert names(made, 10.9) == ["b"]
    assert made.condition("a", 10.9) is Condition.DOWN
    assert made.retry_s("m", 10.9) == 0.0
    for opened_s, wait_s in ((11.0, 2.0), (13.0, 4.0), (17.0, 5.0), (22.0, 5.0)):
        assert names(made, opened_s) == ["a", "b"]
        assert made.condition("a", opened_s) is Condition.TRIAL
        fail(made, "a", opened_s)
        assert names(made, opened_s + wait_s - 0.01) == ["b"]
    assert [record.event for record in made.records()] == ["down"] * 5


def test_one_request_at_a_time_is_on_trial() -> None:
    made = fleet("a")
    fail(made, "a", 0.0, times=3)
    assert names(made, 1.0) == ["a"]
    made.dispatched(request("trial"), "a", 0, 1.0)
    assert names(made, 1.0) == []
    made.finished("trial", 1.1, end=End.CANCELLED)
    assert names(made, 1.1) == ["a"]
    made.dispatched(request("again"), "a", 0, 1.2)
    made.abandoned("again", 1.2)
    made.dispatched(request("third"), "a", 0, 1.2)
    made.first_token("third", 1.3)
    assert made.condition("a", 1.3) is Condition.UP
    assert [record.event for record in made.records()] == ["down", "up"]


def test_after_a_trial_one_failure_more_is_enough_until_an_answer_ends() -> None:
    made = fleet("a")
    fail(made, "a", 0.0, times=3)
    made.dispatched(request("trial"), "a", 0, 1.0)
    made.first_token("trial", 1.1)
    made.finished("trial", 1.2, end=End.FAILED)
    assert names(made, 3.1) == []
    assert names(made, 3.2) == ["a"]
    made.dispatched(request("good"), "a", 0, 3.2)
    made.finished("good", 3.3)
    fail(made, "a", 4.0, times=2)
    assert names(made, 4.0) == ["a"]
    fail(made, "a", 4.0)
    assert names(made, 4.9) == []
    assert names(made, 5.0) == ["a"]


def test_only_failures_in_sequence_count() -> None:
    made = fleet("a")
    for _ in range(5):
        fail(made, "a", 0.0, times=2)
        made.dispatched(request("good"), "a", 0, 0.0)
        made.finished("good", 0.0)
    assert names(made, 0.0) == ["a"]


def test_failures_of_those_sent_before_do_not_prolong_the_back_off() -> None:
    made = fleet("a")
    for number in range(10):
        made.dispatched(request(f"q{number}"), "a", 0, 0.0)
    for number in range(10):
        made.finished(f"q{number}", 0.5, end=End.FAILED)
    assert made.retry_s("m", 0.5) == 1.0
    assert len(made.records()) == 1


def test_a_replica_that_failed_is_taken_to_have_lost_its_cache() -> None:
    made = fleet("a")
    blocks = chain(range(10))
    made.dispatched(request("q", tokens=160, blocks=blocks), "a", 0, 0.0)
    made.finished("q", 0.1, output_tokens=5)
    fail(made, "a", 1.0, times=3)
    assert made.candidates(request("r", tokens=160, blocks=blocks), 2.0)[0].hit_tokens == 0


def test_down_until_up() -> None:
    made = fleet("a")
    made.down("a", 0.0, "not ready")
    made.down("a", 1.0, "not ready")
    assert names(made, 1e9) == []
    assert made.retry_s("m", 1.0) == float("inf")
    made.up("a", 2.0)
    made.up("a", 2.0)
    assert names(made, 2.0) == ["a"]
    assert [(record.event, record.replica) for record in made.records()] == [("down", "a"), ("up", "a")]
    assert made.retry_s("other", 2.0) == 0.0
    assert Fleet().retry_s("m", 0.0) is None


def test_one_that_leaves_ends_what_it_has() -> None:
    made = fleet("a", "b")
    made.dispatched(request("q"), "a", 0, 0.0)
    made.leave("a", 1.0)
    assert names(made, 1.0) == ["b"]
    assert made.condition("a", 1.0) is Condition.LEAVING
    assert [state.name for state in made.states(1.0)] == ["b", "a"]
    made.first_token("q", 2.0)
    assert made.state("a", 2.0).decode_requests == 1
    made.finished("q", 3.0, cached_tokens=0)
    with pytest.raises(KeyError):
        made.state("a", 3.0)


def test_one_that_returns_under_its_url_keeps_its_counts_and_another_does_not() -> None:
    made = Fleet(RULES)
    made.join(ReplicaSpec("a", url="http://one"), 0.0)
    made.dispatched(request("q"), "a", 0, 0.0)
    made.leave("a", 1.0)
    made.join(ReplicaSpec("a", url="http://one", speed=2.0), 2.0)
    assert made.state("a", 2.0).requests == 1
    assert made.state("a", 2.0).spec.speed == 2.0
    made.join(ReplicaSpec("a", url="http://two"), 3.0)
    assert made.state("a", 3.0).requests == 0
    made.finished("q", 4.0)
    assert [state.requests for state in made.states(4.0)] == [0]
    assert [record.event for record in made.records()] == ["join", "leave", "join", "leave", "join"]


def test_a_new_spec_at_the_same_url_is_no_new_replica() -> None:
    made = Fleet(RULES)
    made.join(ReplicaSpec("a", url="u"), 0.0)
    made.join(ReplicaSpec("a", url="u"), 0.0)
    made.join(ReplicaSpec("a", url="u", models=("m",)), 0.0)
    assert made.state("a", 0.0).spec.models == ("m",)
    assert len(made.records()) == 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_counts_return_to_zero_whatever_happens(data: st.DataObject) -> None:
    made = fleet("a", "b")
    now_s, sent, decoding, live = 0.0, 0, set[str](), dict[str, str]()
    for _ in range(data.draw(st.integers(1, 60))):
        now_s += data.draw(st.sampled_from((0.0, 0.1, 1.5)))
        action = data.draw(
            st.sampled_from(("send", "send", "token", "progress", "end", "abandon", "leave", "join", "down"))
        )
        name = data.draw(st.sampled_from(("a", "b")))
        if action == "send":
            ids = data.draw(st.lists(st.integers(0, 1), max_size=4))
            asked = request(f"q{sent}", tokens=16 * len(ids) + 5, blocks=chain(ids))
            found = made.candidates(asked, now_s)
            if found:
                chosen = data.draw(st.sampled_from(found))
                made.dispatched(asked, chosen.name, chosen.hit_tokens, now_s)
                live[asked.id] = chosen.name
                sent += 1
        elif action in ("token", "progress", "end", "abandon") and live:
            id_ = data.draw(st.sampled_from(sorted(live)))
            if action == "token" and id_ not in decoding:
                made.first_token(id_, now_s)
                decoding.add(id_)
            elif action == "progress":
                made.progress(id_, data.draw(st.integers(0, 50)))
            elif action == "end":
                end = data.draw(st.sampled_from(End))
                cached = data.draw(st.none() | st.integers(0, 64))
                made.finished(id_, now_s, end=end, output_tokens=3, cached_tokens=cached)
                del live[id_]
            elif action == "abandon":
                made.abandoned(id_, now_s)
                del live[id_]
        elif action == "leave" and name in made.names:
            made.leave(name, now_s)
        elif action == "join":
            url = data.draw(st.sampled_from(("", "other")))
            made.join(ReplicaSpec(name, url=url, cache_tokens=64), now_s)
        elif action == "down" and name in made.names:
            made.down(name, now_s)
            made.up(name, now_s)
        assert made.in_flight == len(live)
        assert all(state.prefill_tokens >= 0 and state.decode_tokens >= 0 for state in made.states(now_s))
    for id_ in sorted(live):
        made.finished(id_, now_s)
    assert made.in_flight == 0
    for state in made.states(now_s):
        assert state == replace(state, prefill_requests=0, prefill_tokens=0, decode_requests=0, decode_tokens=0)
        assert state.name in made.names
