"""What a workflow is on average: the identities of the pipeline, and figures done by hand."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.serving.workflows.aggregate import aggregate, figures, union_s
from headway.serving.workflows.calls import Call
from headway.serving.workflows.record import by_workflow, runs_of
from tests.serving.workflows.made_calls import calls_of_one_kind

SLOW = settings(deadline=None, max_examples=150)
BLINK_S = 1e-9


def call(run: str, model: str, start_s: float, end_s: float, tokens: tuple[int, int] = (10, 5)) -> Call:
    return Call("w", run, f"{model}{start_s}-{end_s}", model, start_s, end_s, *tokens)


def most_at_once(calls: list[Call]) -> int:
    """The largest number of calls in flight."""
    changes = sorted([(c.start_s, 1) for c in calls] + [(c.end_s, -1) for c in calls])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def test_two_runs_by_hand() -> None:
    runs = runs_of(
        [
            call("1", "g", 0.0, 2.0, (100, 20)),
            call("1", "v", 2.0, 3.0),  # two at once for 1 s, one for another: 3 s of calls in 2 s
            call("1", "v", 2.0, 4.0),
            call("1", "g", 5.0, 6.0, (300, 40)),  # after a tool of 1 s
            call("2", "v", 10.0, 14.0),
            call("2", "g", 13.0, 18.0, (200, 60)),  # both are busy for 1 s
        ]
    )
    found = aggregate(runs)
    assert (found.workflow, found.runs) == ("w", 2)
    assert [use.model for use in found.uses] == ["g", "v"]
    g, v = found.uses
    assert (g.calls, v.calls) == (1.5, 1.5)
    assert (g.concurrency, v.concurrency) == (1.0, 7 / 6)
    assert (g.busy_s, v.busy_s) == (4.0, 3.0)
    assert g.share == pytest.approx((3 / 5 + 5 / 9) / 2)
    assert v.share == pytest.approx((2 / 5 + 4 / 9) / 2)
    assert g.share_cv == pytest.approx((3 / 5 - 5 / 9) / 2 / g.share)
    assert (g.input_tokens, g.output_tokens) == (200.0, 40.0)
    assert (found.latency_s, found.latency_cv) == (7.0, 1 / 7)
    assert (found.other_s, found.overlap_s) == (0.5, 0.5)


def test_concurrency_is_a_ratio_of_sums_so_that_a_stage_takes_the_mean_busy_time() -> None:
    # A long run with one call at a time, a short one with eight: the mean of ratios would be 4.5.
    calls = [call("long", "m", k, k + 1.0) for k in range(9)]
    calls += [Call("w", "short", str(k), "m", 0.0, 1.0, 1, 1) for k in range(8)]
    found = aggregate(runs_of(calls))
    (use,) = found.uses
    assert use.concurrency == 17 / 10
    assert 1.0 * use.calls / use.concurrency == pytest.approx(found.latency_s)  # mean latency of a call: 1 s


def test_a_model_that_only_some_runs_call_has_share_0_in_the_others() -> None:
    found = aggregate(runs_of([call("1", "a", 0, 1), call("2", "a", 0, 1), call("2", "b", 1, 2)]))
    assert {use.model: (use.calls, use.share) for use in found.uses} == {"a": (1.0, 0.75), "b": (0.5, 0.25)}
    assert {use.model: use.concurrency for use in found.uses} == {"a": 1.0, "b": 1.0}


def test_an_aggregate_is_of_one_kind() -> None:
    with pytest.raises(ValueError, match="not of 0"):
        aggregate([])
    runs = runs_of([call("1", "a", 0, 1), Call("other", "1", "x", "a", 0, 1, 1, 1)])
    with pytest.raises(ValueError, match="other, w"):
        aggregate(runs)
    assert list(by_workflow(runs)) == ["other", "w"]


@SLOW
@given(calls_of_one_kind())
def test_the_pipeline_of_what_was_measured_takes_the_time_that_was_measured(calls: list[Call]) -> None:
    runs = runs_of(calls)
    found = aggregate(runs)
    assert isclose(sum(use.share for use in found.uses), 1.0)
    for use in found.uses:
        mine = [call for call in calls if call.model == use.model]
        widest = max(most_at_once([c for c in run.calls if c.model == use.model] or []) for run in runs)
        assert 1 - BLINK_S <= use.concurrency <= widest + BLINK_S
        assert 0 < use.share <= 1
        mean_call_s = sum(c.end_s - c.start_s for c in mine) / len(mine)
        assert isclose(mean_call_s * use.calls / use.concurrency, use.busy_s)
        assert isclose(use.calls * len(runs), len(mine))
    pipeline_s = sum(use.busy_s for use in found.uses)
    assert isclose(pipeline_s - found.overlap_s + found.other_s, found.latency_s)
    assert found.overlap_s >= 0
    assert found.other_s >= 0
    if len(found.uses) == 1:
        assert found.overlap_s < BLINK_S


@SLOW
@given(calls_of_one_kind(), st.randoms(use_true_random=False))
def test_the_order_in_which_calls_were_recorded_does_not_matter(calls: list[Call], random: object) -> None:
    shuffled = list(calls)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert runs_of(shuffled) == runs_of(calls)
    assert sum(len(run.calls) for run in runs_of(calls)) == len(calls)


@SLOW
@given(calls_of_one_kind())
def test_a_run_twice_as_slow_has_the_same_shares(calls: list[Call]) -> None:
    slower = [Call(c.workflow, c.run, c.id, c.model, 2 * c.start_s, 2 * c.end_s, 0, 0) for c in calls]
    once, twice = (aggregate(runs_of(each)) for each in (calls, slower))
    for use, other in zip(once.uses, twice.uses, strict=True):
        assert (use.model, use.calls, use.concurrency, use.share) == (
            other.model,
            other.calls,
            other.concurrency,
            other.share,
        )
        assert 2 * use.busy_s == other.busy_s


@SLOW
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=20))
def test_the_union_is_the_count_of_covered_seconds(intervals: list[tuple[int, int]]) -> None:
    covered = {second for start, length in intervals for second in range(start, start + length)}
    assert union_s((start, start + length) for start, length in intervals) == len(covered)


def test_figures_of_one_run() -> None:
    (run,) = runs_of([call("1", "a", 1, 3), call("1", "b", 2, 4), call("1", "a", 6, 7)])
    found = figures(run)
    assert (found.latency_s, found.busy_s) == (6, 4)
    assert (found.share("a"), found.share("b"), found.share("c")) == (0.6, 0.4, 0.0)


def test_what_floats_leave_over_is_no_time_without_a_call() -> None:
    calls = [Call("w", "r", str(at), "mn"[at % 2], 0.1 * at, 0.1 * (at + 1), 10, 1) for at in range(1, 20)]
    for start_s in (0.0, 0.7, 3.3, 1_800_000_000.3):
        later = [replace(call, start_s=start_s + call.start_s, end_s=start_s + call.end_s) for call in calls]
        found = aggregate(runs_of(later))
        assert found.other_s == 0.0
        assert found.overlap_s == 0.0
    assert aggregate(runs_of([calls[0], *calls[2:]])).other_s == pytest.approx(0.1)
