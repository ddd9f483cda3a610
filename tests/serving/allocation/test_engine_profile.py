"""Curves from the engine model: they rise, saturate, fit memory, and know bursts and prefixes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.errors import UsageError
from headway.serving.allocation import engine_profile as profiles
from headway.serving.allocation.engine_profile import all_shapes, engine_profile, least_bytes
from headway.serving.allocation.replay import OPEN_RUNS, Replay, run
from headway.serving.allocation.types import Curve, ModelProfile, Shape
from headway.serving.engine import hardware
from headway.serving.engine.types import Job
from headway.serving.prefix import chain
from headway.serving.workflows.calls import Call

MODEL = "llama-3.2-3b"
SHAPES = [Shape(1, 3), Shape(1, 10), Shape(2, 10)]


@pytest.fixture(autouse=True)
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough to see what a test asks for."""
    monkeypatch.setattr(profiles, "CALLS", 120)


def call(run_: int, number: int, start_s: float, *, tokens: int = 640, out: int = 40, shared: int = 0) -> Call:
    """A call that shares its first `shared` blocks with all others."""
    ids = [*range(shared), *(1000 * run_ + 10 * number + 7_000_000 + at for at in range(tokens // 64 - shared))]
    return Call("w", f"r{run_}", str(number), MODEL, start_s, start_s + 1.0, tokens, out, chain(ids), 64)


def alone(runs: int = 20, each: int = 3, **form: int) -> list[Call]:
    """Runs whose calls come one after the other."""
    return [call(run_, number, 100.0 * run_ + 2.0 * number, **form) for run_ in range(runs) for number in range(each)]


def together(width: int, runs: int = 20, **form: int) -> list[Call]:
    """Runs of two bursts."""
    return [
        call(run_, number, 100.0 * run_ + 5.0 * (number // width) + 0.001 * number, **form)
        for run_ in range(runs)
        for number in range(2 * width)
    ]


def made(calls: list[Call], shapes: list[Shape] = SHAPES) -> ModelProfile:
    return engine_profile(MODEL, "a100", calls, shapes, 10, seed=3)


def test_curves_rise_to_a_saturation_above_their_last_rate() -> None:
    for curve in made(alone()).curves.values():
        assert list(curve.rates) == sorted(curve.rates)
        assert curve.rates[-1] < curve.saturation
        assert curve.latencies_s[-1] > curve.latencies_s[0]
        assert all(p99 >= mean for p99, mean in zip(curve.p99_s, curve.latencies_s, strict=True))


def test_more_of_a_gpu_is_faster_and_takes_more_calls() -> None:
    curves = made(alone()).curves
    ordered = [curves[shape] for shape in SHAPES]
    assert [curve.saturation for curve in ordered] == sorted(curve.saturation for curve in ordered)
    idle_s = [curve.latencies_s[0] for curve in ordered]
    assert idle_s == sorted(idle_s, reverse=True)


def test_at_low_rates_a_call_takes_as_long_as_it_does_alone() -> None:
    curve = made(alone(out=1)).curves[Shape(1, 10)]
    engine = hardware.profile("a100", MODEL, block_tokens=64)
    ends_s = run(engine, [(0.0, Job("only", 640, 1))])
    assert curve.latencies_s[0] == pytest.approx(ends_s["only"], rel=0.1)


def test_the_same_arguments_give_the_same_profile() -> None:
    assert made(alone()) == made(alone())


def test_what_others_were_asked_is_left_out() -> None:
    others = [Call("w", "r0", "x", "another", 0.0, 50.0, 9000, 900)]
    assert made(alone() + others) == made(alone())


def test_calls_that_come_alone_have_one_curve_however_many_instances_there_are() -> None:
    profile = made(alone())
    assert not profile.spread_curves
    assert profile.curve(Shape(1, 10), 5) == profile.curves[Shape(1, 10)]


def test_a_burst_that_is_spread_over_instances_is_over_sooner() -> None:
    profile = made(together(16, out=1), [Shape(1, 10)])
    idle_s = [profile.curve(Shape(1, 10), count).latencies_s[0] for count in (1, 2, 4, 8)]
    assert idle_s == sorted(idle_s, reverse=True)
    assert idle_s[0] > 4 * idle_s[-1]
    assert profile.curve(Shape(1, 10), 20) == profile.curve(Shape(1, 10), 16)


def test_a_prefix_that_runs_share_is_found_in_the_cache() -> None:
    def saturation(shared: int) -> float:
        return made(alone(out=1, shared=shared), [Shape(1, 10)]).curves[Shape(1, 10)].saturation

    assert saturation(9) > 3 * saturation(0)


def test_a_run_that_comes_again_does_not_find_its_own_prompts_in_the_cache() -> None:
    one = made(alone(runs=1, out=1), [Shape(1, 10)]).curves[Shape(1, 10)]
    many = made(alone(runs=40, out=1), [Shape(1, 10)]).curves[Shape(1, 10)]
    assert one.saturation == pytest.approx(many.saturation, rel=0.05)


def test_only_shapes_that_hold_weights_and_two_of_the_longest_calls_are_kept() -> None:
    profile = engine_profile(MODEL, "a100", alone(), all_shapes(20, 4), 20)
    memory_bytes = hardware.DEVICES["a100"].memory_bytes
    least = profile.memory_bytes[1]
    assert least == least_bytes(MODEL, 1, 2 * 680)
    fits = [slices for slices in range(1, 21) if memory_bytes * slices / 20 >= least]
    assert sorted(profile.curves) == [Shape(1, slices) for slices in fits] + [Shape(2, 20), Shape(4, 20)]
    assert fits[0] > 1


def test_every_kept_shape_can_run_the_longest_call_in_the_least_memory() -> None:
    longest = 4000
    cache_tokens = profiles.LEAST_CALLS * longest
    bytes_ = least_bytes(MODEL, 1, cache_tokens)
    engine = hardware.profile("a100", MODEL, fraction=bytes_ / hardware.DEVICES["a100"].memory_bytes)
    assert cache_tokens <= engine.cache_tokens <= cache_tokens + 16


@pytest.mark.parametrize(
    ("model", "device", "calls", "says"),
    [
        ("unheard-of", "a100", alone(), "no call to unheard-of"),
        (MODEL, "a1000", alone(), "a1000"),
        (MODEL, "a100", [], "no call"),
        (MODEL, "t4", alone(tokens=6400 * 64), "fits into no shape"),
    ],
)
def test_errors_name_what_is_wrong(model: str, device: str, calls: list[Call], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        engine_profile(model, device, calls, SHAPES, 10)


def test_a_model_that_no_table_knows_is_an_error_that_lists_the_known() -> None:
    calls = [Call("w", "r", "0", "mine", 0.0, 1.0, 10, 10)]
    with pytest.raises(UsageError, match="llama-3-8b"):
        engine_profile("mine", "a100", calls, SHAPES, 10)
    assert engine_profile("mine", "a100", calls, SHAPES, 10, engine_model=MODEL).model == "mine"


def test_all_shapes_are_fractions_and_whole_gpus_by_powers_of_two() -> None:
    assert all_shapes(2, 8) == [Shape(1, 1), Shape(1, 2), Shape(2, 2), Shape(4, 2), Shape(8, 2)]
    assert all_shapes(1, 1) == [Shape(1, 1)]
    assert all_shapes(1, 3) == [Shape(1, 1), Shape(2, 1)]


def test_a_replay_keeps_lengths_and_the_order_within_runs() -> None:
    calls = [
        call(run_, number, 10.0 * number + run_, tokens=64 * (number + 1)) for run_ in range(4) for number in range(5)
    ]
    arrivals = Replay(calls, seed=1).arrivals(2000, rate=5.0)
    lengths = [job.input_tokens for _, job in arrivals]
    counts = {tokens: lengths.count(tokens) for tokens in set(lengths)}
    assert set(counts) == {64, 128, 192, 256, 320}
    assert max(counts.values()) < 1.15 * min(counts.values())
    times = [at_s for at_s, _ in arrivals]
    assert times == sorted(times)
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.1)
    private = [job.blocks[0] for _, job in arrivals if job.blocks]
    assert len(set(private)) > OPEN_RUNS


def test_a_curve_grows_without_limit_towards_saturation() -> None:
    curve = made(alone(), [Shape(1, 10)]).curves[Shape(1, 10)]
    assert isinstance(curve, Curve)
    assert curve.latency_s(0.9999 * curve.saturation) > 10 * curve.latencies_s[-1]
    assert curve.latency_s(curve.saturation) == float("inf")


def test_runs_that_begin_in_their_middle_are_not_measured_with_an_empty_cache() -> None:
    """The first bursts are one of each run that is under way; runs that are joined late would compute all again."""
    runs = [replace(it, blocks=chain([int(it.run[1:]), int(it.id)])) for it in together(8)]
    arrivals = Replay(runs, seed=2).arrivals(8 * OPEN_RUNS, rate=1.0)
    at_once: dict[float, set[int]] = {}
    for at_s, job in arrivals:
        at_once.setdefault(at_s, set()).add(job.blocks[0])
    first = list(at_once.values())[:OPEN_RUNS]
    assert all(len(blocks) == 1 for blocks in first)
    assert len(set.union(*first)) == OPEN_RUNS, "a run came a second time before all had come once"


def test_a_replay_without_times_is_the_same_calls() -> None:
    replay = Replay(together(4), seed=2)
    jobs = replay.jobs(spread=2)
    assert [next(jobs) for _ in range(40)] == [job for _, job in replay.arrivals(40, 1.0, spread=2)][:40]
