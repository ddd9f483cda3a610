"""Crowds of recorded runs on one engine: they wait for their answers, pause, share bursts, and may be too many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.serving.allocation.crowd import FIRST, Crowds, grown
from headway.serving.allocation.recorded import Recorded
from headway.serving.allocation.replay import run
from headway.serving.engine import hardware
from headway.serving.engine.types import EngineProfile, Job
from headway.serving.prefix import chain
from headway.serving.workflows.calls import Call

MODEL = "llama-3.2-3b"
PAUSE_S = 3.0


def turns(runs: int = 6, each: int = 5, *, tokens: int = 640, out: int = 40, pause_s: float = PAUSE_S) -> list[Call]:
    """Runs of which each turn reads all that was said before it, `pause_s` after the last one's end."""
    return [
        Call(
            "w",
            f"r{number}",
            f"{number}-{turn}",
            MODEL,
            begin_s := 1000.0 * number + turn * (1.0 + pause_s),
            begin_s + 1.0,
            tokens * (turn + 1),
            out,
            chain([1_000_000 * number + at for at in range(tokens * (turn + 1) // 64)]),
            64,
        )
        for number in range(runs)
        for turn in range(each)
    ]


def together(width: int, runs: int = 10) -> list[Call]:
    """Runs of two bursts."""
    return [
        Call("w", f"r{number}", str(at), MODEL, start_s := 100.0 * number + 5.0 * (at // width), start_s + 1.0, 640, 20)
        for number in range(runs)
        for at in range(2 * width)
    ]


def engine(cache_tokens: int | None = None) -> EngineProfile:
    made = hardware.profile("a100", MODEL, block_tokens=64)
    return made if cache_tokens is None else replace(made, cache_tokens=cache_tokens)


def test_recorded_runs_know_their_bursts_and_pauses() -> None:
    recorded = Recorded(together(8, runs=2), seed=0)
    assert recorded.bursty
    assert [[len(it.calls) for it in one] for one in recorded.runs] == [[8, 8], [8, 8]]
    assert [[it.pause_s for it in one] for one in recorded.runs] == [[0.0, 4.0]] * 2
    assert not Recorded(turns(), seed=0).bursty


def test_a_run_alone_takes_the_time_of_its_calls_and_its_pauses() -> None:
    calls = turns(runs=1, each=1)
    alone_s = run(engine(), [(0.0, Job("only", 640, 40))])["only"]
    assert Crowds(calls, seed=1).throughput(engine(), 1, 50) == pytest.approx(1 / alone_s, rel=0.01)
    of_turns = Crowds(turns(), seed=1).throughput(engine(), 1, 500)
    assert of_turns < 5 / (4 * PAUSE_S)
    assert of_turns > 0.8 * 5 / (4 * PAUSE_S + 5 * 2 * alone_s)


def test_few_runs_do_not_fill_an_engine_and_too_many_lose_their_cache() -> None:
    scarce = engine(cache_tokens=200_000)  # some 24 runs of 6 to 10 thousand tokens
    crowds = Crowds(turns(tokens=2048, out=10), seed=1)
    few, some, many = (crowds.throughput(scarce, runs, 400) for runs in (2, 24, 64))
    assert few < some / 4
    assert many < 0.8 * some
    assert 0.9 * some < crowds.saturation(scarce, 400) < 1.2 * some
    assert crowds.throughput(engine(), 64, 400) > 1.3 * some, "with a large cache the large crowd is the best"


def test_the_best_size_of_a_crowd_is_found_where_too_many_do_less() -> None:
    found = grown(lambda runs: min(runs, 3 * 100 - 2 * runs))
    assert max(found.values()) > 90
    assert max(found) == 128
    assert grown(lambda runs: min(runs, 50), first=1)[64] == 50
    small = grown(lambda runs: runs if runs < 4 else 4 / runs)
    assert max(small, key=lambda runs: small[runs]) == 3
    assert grown(lambda runs: 1 / runs)[1] == 1
    shaken = grown(lambda runs: {4: 22.4, 5: 18.0, 3: 19.0, 8: 10.4, 16: 11.0}.get(runs, 10.0))
    assert max(shaken.values()) == 22.4, "beyond the best one, what is left goes up and down"


def test_with_few_runs_in_its_cache_an_engine_is_measured_with_few() -> None:
    tiny = engine(cache_tokens=25_000)  # of two or three runs of 6 to 10 thousand tokens
    crowds = Crowds(turns(tokens=2048, out=10, pause_s=0.0), seed=1)
    assert crowds.throughput(tiny, 2, 400) > 1.1 * crowds.throughput(tiny, 8, 400)
    assert crowds.saturation(tiny, 400) >= crowds.throughput(tiny, 2, 400)


def test_pauses_of_a_minute_do_not_make_an_engine_slower() -> None:
    """It takes tens of thousands of runs to keep it busy then."""
    alone = Crowds(turns(each=1), seed=1).saturation(engine(), 200)
    pausing = [replace(it, start_s=60 * it.start_s, end_s=60 * it.start_s + 1.0) for it in turns(out=40)]
    of_runs = Crowds(pausing, seed=1).saturation(engine(), 200)
    assert of_runs > alone / 5, "prompts are 3 times as long in the mean, and are not found in the cache"


def test_saturation_is_that_of_the_best_crowd_and_hardly_depends_on_the_calls_that_are_measured() -> None:
    crowds = Crowds(together(24), seed=0)
    found = crowds.saturation(engine(), 400)
    assert found >= crowds.throughput(engine(), FIRST, 400)
    assert found == pytest.approx(crowds.saturation(engine(), 3000), rel=0.07)


def test_one_of_several_instances_gets_its_part_of_each_burst() -> None:
    calls = together(8)
    whole = Crowds(calls, seed=0).throughput(engine(), 4, 400)
    part = Crowds(calls, seed=0).throughput(engine(), 4, 400, spread=4)
    assert part == pytest.approx(whole / 4, rel=0.35), "the rounds take nearly as long with fewer calls in them"
    rare = Crowds(calls, seed=0).throughput(engine(), 4, 400, spread=32)
    recorded_rounds = 4 * 2 / (4.0 + 2 * 1.0)
    assert rare == pytest.approx(recorded_rounds * 8 / 32, rel=0.2), "what others serve takes the recorded time"


def test_the_same_seed_gives_the_same_crowd() -> None:
    first, second = (Crowds(turns(), seed=7).throughput(engine(), 16, 300) for _ in range(2))
    assert first == second
    assert first != Crowds(turns(), seed=8).throughput(engine(), 16, 300)
