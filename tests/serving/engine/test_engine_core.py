"""What the engine does in which step, against closed forms."""

from __future__ import annotations

import pytest

from headway.errors import HeadwayError, UsageError
from headway.serving.engine.core import EngineCore
from headway.serving.engine.types import EngineProfile, Job
from tests.serving.engine.driving import PROFILE, drive, variant


def _step_s(profile: EngineProfile, chunks: list[tuple[int, int]], decodes: list[int]) -> float:
    """The profile's formula, written once more: (tokens, tokens before them) of prompts; contexts of answers."""
    tokens = sum(new for new, _ in chunks) + len(decodes)
    pairs = sum(new * (before + new / 2) for new, before in chunks) + sum(decodes)
    compute_s = tokens * profile.token_s + pairs * profile.attention_s
    return profile.step_s + max(compute_s, profile.weights_s + sum(decodes) * profile.context_s)


def _blocks(count: int, start: int = 0) -> tuple[int, ...]:
    return tuple(range(start, start + count))


def test_one_request_takes_what_the_formula_says() -> None:
    seen = drive(EngineCore(PROFILE), [(0.5, Job("a", 1200, 40))])
    prefill_s = sum(_step_s(PROFILE, [chunk], []) for chunk in [(512, 0), (512, 512), (176, 1024)])
    decode_s = sum(_step_s(PROFILE, [], [1200 + index]) for index in range(39))
    assert seen.first_s["a"] == pytest.approx(0.5 + prefill_s)
    assert seen.end_s["a"] == pytest.approx(0.5 + prefill_s + decode_s)
    assert seen.tokens["a"] == list(range(1, 41))


def test_answers_go_first_and_prompts_get_what_is_left_of_the_budget() -> None:
    core = EngineCore(PROFILE)
    core.submit(Job("a", 500, 9), 0.0)
    assert core.begin_step(0.0) == pytest.approx(_step_s(PROFILE, [(500, 0)], []))
    core.end_step(1.0)
    core.submit(Job("b", 700, 2), 1.0)
    core.submit(Job("c", 700, 2), 1.0)
    assert core.begin_step(1.0) == pytest.approx(_step_s(PROFILE, [(511, 0)], [500]))
    core.end_step(2.0)
    assert core.begin_step(2.0) == pytest.approx(_step_s(PROFILE, [(189, 511), (322, 0)], [501]))
    assert [(token.id, token.number) for token in core.end_step(3.0)] == [("a", 3), ("b", 1)]
    assert core.begin_step(3.0) == pytest.approx(_step_s(PROFILE, [(378, 322)], [502, 700]))


def test_a_prompt_that_came_before_is_found_in_whole_blocks() -> None:
    blocks = _blocks(7)
    jobs = [(0.0, Job("a", 100, 2, blocks)), (9.0, Job("b", 100, 2, blocks)), (18.0, Job("c", 96, 2, blocks[:6]))]
    seen = drive(EngineCore(PROFILE), jobs)
    # 100 tokens are 6 whole blocks of 16; of 96 tokens the last block is computed again, so that there is a token to
    # compute.
    assert seen.cached == {"a": 0, "b": 96, "c": 80}
    assert seen.first_s["b"] - 9.0 == pytest.approx(_step_s(PROFILE, [(4, 96)], []))


def test_only_what_is_computed_is_found() -> None:
    core = EngineCore(PROFILE)
    blocks = _blocks(64)
    core.submit(Job("a", 1024, 2, blocks), 0.0)
    core.begin_step(0.0)
    core.end_step(1.0)
    assert core.cached_tokens == 512
    core.cancel("a", 1.0)
    seen = drive(core, [(1.0, Job("b", 1024, 2, blocks))])
    assert seen.cached == {"b": 512}


def test_without_prefix_caching_nothing_is_found() -> None:
    jobs = [(0.0, Job("a", 100, 2, _blocks(7))), (9.0, Job("b", 100, 2, _blocks(7)))]
    assert drive(EngineCore(variant(prefix_caching=False)), jobs).cached == {"a": 0, "b": 0}


def test_the_prompt_used_longest_ago_is_forgotten_first() -> None:
    core = EngineCore(variant(cache_tokens=16 * 12))
    prompts = {name: _blocks(4, 100 * index) for index, name in enumerate("abc")}
    order = ["a", "b", "c", "a", "b", "a"]
    jobs = [(float(at), Job(f"{name}{at}", 64, 1, prompts[name])) for at, name in enumerate(order)]
    cached = drive(core, jobs).cached
    # 12 blocks hold three prompts; of one of exactly 4 blocks 3 are found, since a token must be computed.
    assert [cached[job.id] for _, job in jobs] == [0, 0, 0, 48, 48, 48]
    after = drive(core, [(10.0, Job("d", 64, 1, _blocks(4, 900))), (11.0, Job("c9", 64, 1, prompts["c"]))])
    assert after.cached["c9"] < 48
    assert drive(core, [(20.0, Job("a9", 64, 1, prompts["a"]))]).cached["a9"] == 48


def test_no_more_run_than_the_batch_may_hold() -> None:
    core = EngineCore(variant(most_running=2))
    for name in "abc":
        core.submit(Job(name, 16, 3), 0.0)
    core.begin_step(0.0)
    core.end_step(1.0)
    assert (core.running, core.waiting) == (2, 1)
    report = core.report()
    assert (report.running, report.waiting, report.cache_tokens) == (2, 1, 65536)
    # each context of 16 + 1 tokens will need its second block in the next step
    assert report.kv_usage == pytest.approx(2 / 4096)


def test_who_waits_goes_by_priority_and_then_by_arrival() -> None:
    jobs = [
        (0.0, Job("first", 400, 3, priority=5)),
        (0.001, Job("late", 500, 1, priority=1)),
        (0.002, Job("urgent", 500, 1, priority=0)),
        (0.003, Job("later", 500, 1, priority=1)),
    ]
    first_s = drive(EngineCore(PROFILE), jobs).first_s
    assert sorted(first_s, key=lambda name: first_s[name]) == ["first", "urgent", "late", "later"]


def test_the_newest_is_preempted_and_computed_anew() -> None:
    # 8 blocks: two prompts of 3 blocks each, and answers that need a fourth and a fifth block.
    profile = variant(cache_tokens=128, prefix_caching=False)
    core = EngineCore(profile)
    seen = drive(core, [(0.0, Job("a", 48, 32)), (0.001, Job("b", 48, 32))])
    assert core.preemptions == 1
    alone = drive(EngineCore(profile), [(0.0, Job("a", 48, 32))])
    assert alone.end_s["a"] < seen.end_s["a"] < seen.end_s["b"]
    assert seen.tokens == {"a": list(range(1, 33)), "b": list(range(1, 33))}
    assert core.free_tokens == 128


def test_of_two_priorities_the_lower_is_preempted_even_if_older() -> None:
    profile = variant(cache_tokens=128, prefix_caching=False)
    seen = drive(EngineCore(profile), [(0.0, Job("old", 48, 32, priority=1)), (0.001, Job("new", 48, 32))])
    assert seen.end_s["new"] < seen.end_s["old"]


def test_what_can_never_run_is_refused() -> None:
    core = EngineCore(variant(cache_tokens=128))
    with pytest.raises(
        UsageError, match="request a: 100 tokens of input and 30 of output do not fit into a cache of 128"
    ):
        core.submit(Job("a", 100, 30), 0.0)
    core.submit(Job("b", 100, 29), 0.0)
    with pytest.raises(UsageError, match="still in the engine"):
        core.submit(Job("b", 1, 1), 0.0)
    with pytest.raises(UsageError, match="a token of input"):
        core.submit(Job("c", 0, 1), 0.0)
    seen = drive(core, [])
    assert len(seen.tokens["b"]) == 29


@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode", "between steps"])
def test_cancel_frees_all_at_once(phase: str) -> None:
    core = EngineCore(variant(most_running=1))
    core.submit(Job("a", 600, 5), 0.0)
    core.submit(Job("b", 600, 5), 0.0)
    if phase == "waiting":
        core.begin_step(0.0)
        assert core.cancel("b", 0.0)
        assert core.waiting == 0
        assert "b" not in drive(core, []).tokens
        return
    core.begin_step(0.0)
    if phase != "prefill":
        core.end_step(1.0)
        core.begin_step(1.0)
        core.end_step(2.0)
        if phase == "decode":
            core.begin_step(2.0)
    assert core.cancel("a", 3.0)
    assert core.free_tokens == PROFILE.cache_tokens
    assert not core.cancel("a", 3.0)
    if core.due_s is not None:
        assert [token.id for token in core.end_step(4.0)] == []
    seen = drive(core, [])
    assert seen.tokens == {"b": [1, 2, 3, 4, 5]}
    assert core.free_tokens == PROFILE.cache_tokens


def test_without_chunks_a_prompt_is_computed_whole() -> None:
    profile = variant(chunked_prefill=False)
    core = EngineCore(profile)
    for name, tokens in [("a", 2000), ("b", 400), ("c", 100), ("d", 100)]:
        core.submit(Job(name, tokens, 2), 0.0)
    assert core.begin_step(0.0) == pytest.approx(_step_s(profile, [(2000, 0)], []))
    assert [token.id for token in core.end_step(1.0)] == ["a"]
    assert core.begin_step(1.0) == pytest.approx(_step_s(profile, [(400, 0), (100, 0)], [2000]))
    assert [token.id for token in core.end_step(2.0)] == ["a", "b", "c"]


def test_a_series_of_steps_is_cut_when_something_comes() -> None:
    core = EngineCore(PROFILE)
    core.submit(Job("a", 16, 100), 0.0)
    first_s = core.begin_steps(0.0)
    assert first_s is not None
    core.end_steps(first_s)
    lasts_s = core.begin_steps(first_s)
    assert lasts_s is not None
    assert lasts_s > 10 * first_s
    core.submit(Job("b", 16, 2), first_s * 4.5)
    assert core.due_s is not None
    assert first_s * 4.5 <= core.due_s < first_s * 6
    assert core.produced(core.due_s)["a"] == 4  # the step that ends now has not ended yet
    assert core.end_steps(core.due_s) == []
    assert core.produced(first_s * 6)["a"] == 5


def test_a_slow_engine_takes_so_many_times_as_long() -> None:
    core = EngineCore(PROFILE)
    core.slow_down(3, 0.0)
    slow, fast = drive(core, [(0.0, Job("a", 900, 30))]), drive(EngineCore(PROFILE), [(0.0, Job("a", 900, 30))])
    assert slow.end_s["a"] == pytest.approx(3 * fast.end_s["a"])
    with pytest.raises(UsageError, match="not above 0"):
        core.slow_down(0, 0.0)


def test_steps_come_one_after_another() -> None:
    core = EngineCore(PROFILE)
    assert core.begin_step(0.0) is None
    with pytest.raises(HeadwayError, match="had not begun"):
        core.end_step(0.0)
    core.submit(Job("a", 16, 2), 0.0)
    core.begin_step(0.0)
    with pytest.raises(HeadwayError, match="had ended"):
        core.begin_step(0.0)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(UsageError, match="step_tokens: a step of 8 tokens cannot hold 64"):
        EngineCore(variant(step_tokens=8))
    with pytest.raises(UsageError, match="cache_tokens: a cache of 8 tokens has no room"):
        EngineCore(variant(cache_tokens=8))
