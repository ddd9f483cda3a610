"""What holds of every load: nothing is lost, slower is never faster, more is never faster."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.serving.engine.core import EngineCore
from headway.serving.engine.types import Job
from tests.serving.engine.driving import drive, variant

SMALL = variant(cache_tokens=16 * 40, step_tokens=100, most_running=8)
"""Memory for two or three of the jobs below: they are preempted often."""
PLAIN = variant(prefix_caching=False, step_tokens=100)
SLACK_S = 1e-9
UNTIMED = settings(deadline=None)


@st.composite
def _jobs(draw: st.DrawFn, prefix: str = "job") -> list[tuple[float, Job]]:
    jobs = []
    for index in range(draw(st.integers(1, 8))):
        tokens, family = draw(st.integers(1, 400)), draw(st.integers(0, 2))
        shared = draw(st.integers(0, 25))
        blocks = tuple(
            family * 100 + block if block < shared else 10_000 * (index + 1) + block
            for block in range(-(-tokens // 16))
        )
        job = Job(f"{prefix}{index}", tokens, draw(st.integers(1, 200)), blocks, draw(st.integers(0, 1)))
        jobs.append((draw(st.floats(0, 2)), job))
    return jobs


def _equal(jobs: list[tuple[float, Job]]) -> list[tuple[float, Job]]:
    """The same at one instant and of one priority."""
    return [(0.0, Job(job.id, job.input_tokens, job.output_tokens)) for _, job in jobs]


@UNTIMED
@given(_jobs(), st.booleans(), st.booleans(), st.booleans())
def test_all_ends_and_all_blocks_are_free_or_cached(
    jobs: list[tuple[float, Job]], series: bool, caching: bool, chunked: bool
) -> None:
    core = EngineCore(
        variant(cache_tokens=640, step_tokens=100, most_running=8, prefix_caching=caching, chunked_prefill=chunked)
    )
    seen = drive(core, jobs, series=series)
    assert set(seen.end_s) == {job.id for _, job in jobs}
    if not series:
        assert seen.tokens == {job.id: list(range(1, job.output_tokens + 1)) for _, job in jobs}
    assert core.free_tokens == 640
    assert core.cached_tokens <= 640
    assert (core.running, core.waiting) == (0, 0)
    assert caching or core.cached_tokens == 0


@UNTIMED
@given(_jobs())
def test_a_series_of_steps_is_the_same_as_its_steps(jobs: list[tuple[float, Job]]) -> None:
    for profile in (SMALL, variant(attention_s=1e-5, context_s=1e-7, weights_s=0.0001)):
        one, many = drive(EngineCore(profile), jobs), drive(EngineCore(profile), jobs, series=True)
        assert one.cached == many.cached
        assert all(abs(one.first_s[id_] - many.first_s[id_]) < SLACK_S for id_ in one.first_s)
        assert all(abs(one.end_s[id_] - many.end_s[id_]) < SLACK_S for id_ in one.end_s)
        assert many.steps <= one.steps


@UNTIMED
@given(_jobs(), st.data())
def test_cancelling_some_loses_no_block_and_no_other_request(
    jobs: list[tuple[float, Job]], data: st.DataObject
) -> None:
    core = EngineCore(SMALL)
    for _, job in jobs:
        core.submit(job, 0.0)
    left = {job.id for _, job in jobs}
    now_s = 0.0
    for _ in range(data.draw(st.integers(0, 12))):
        begun_s = core.begin_steps(now_s)
        if begun_s is None:
            break
        gone = data.draw(st.sampled_from(["", *sorted(left)]))
        if gone:
            assert core.cancel(gone, now_s + begun_s / 3)
            left.remove(gone)
        assert core.due_s is not None
        now_s = core.due_s
        left -= {token.id for token in core.end_steps(now_s) if token.last}
    assert set(drive(core, []).end_s) == left
    assert core.free_tokens == SMALL.cache_tokens


@UNTIMED
@given(_jobs())
def test_at_half_the_speed_nothing_is_faster(jobs: list[tuple[float, Job]]) -> None:
    jobs = [(at_s, Job(job.id, job.input_tokens, job.output_tokens)) for at_s, job in jobs]
    slow_core = EngineCore(PLAIN)
    slow_core.slow_down(2, 0.0)
    fast, slow = drive(EngineCore(PLAIN), jobs), drive(slow_core, jobs)
    assert all(slow.first_s[id_] >= fast.first_s[id_] - SLACK_S for id_ in fast.first_s)
    assert all(slow.end_s[id_] >= fast.end_s[id_] - SLACK_S for id_ in fast.end_s)


@UNTIMED
@given(_jobs())
def test_each_time_in_the_profile_matters(jobs: list[tuple[float, Job]]) -> None:
    """Twice of any of them makes no request faster, of those that come at one instant."""
    jobs = _equal(jobs)
    before = drive(EngineCore(PLAIN), jobs)
    for name in ("step_s", "token_s", "attention_s", "weights_s", "context_s"):
        worse = variant(prefix_caching=False, step_tokens=100, **{name: 2 * getattr(PLAIN, name)})
        after = drive(EngineCore(worse), jobs)
        assert all(after.end_s[id_] >= before.end_s[id_] - SLACK_S for id_ in before.end_s)


@UNTIMED
@given(_jobs(), _jobs("more"))
def test_more_load_at_the_same_instant_makes_no_request_faster(
    jobs: list[tuple[float, Job]], more: list[tuple[float, Job]]
) -> None:
    """Of loads that come over time this does not hold: who waits for longer may share a step that reads the weights."""
    before = drive(EngineCore(PLAIN), _equal(jobs))
    after = drive(EngineCore(PLAIN), _equal(jobs) + _equal(more))
    assert all(after.first_s[id_] >= before.first_s[id_] - SLACK_S for id_ in before.first_s)
    assert all(after.end_s[id_] >= before.end_s[id_] - SLACK_S for id_ in before.end_s)
