"""Generated loads have the statistics that they are made for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.serving.workload import arrivals as processes
from headway.serving.workload import generated, sharing
from headway.serving.workload.arrival import Arrival
from headway.serving.workload.blocks import blocks_of
from headway.serving.workload.named import NAMES, load
from headway.serving.workload.statistics import lru_hit_share, measure

TRACE_REQUESTS = {"conversation": 12_031, "toolagent": 23_608, "synthetic": 3_993}


@pytest.mark.parametrize(
    ("name", "mean_in", "mean_out", "hit_share", "distance"),
    [
        ("conversation", 12_035, 343, 0.374, 728),  # counted in the public trace, as `statistics` counts
        ("toolagent", 8_600, 182, 0.58, 306),  # published
        ("synthetic", 15_325, 149, 0.651, 430),  # counted in the public trace
    ],
)
@pytest.mark.parametrize("seed", [0, 7])
def test_generated_traces_have_the_real_ones_statistics(
    name: str, mean_in: float, mean_out: float, hit_share: float, distance: float, seed: int
) -> None:
    found = measure(load(name, requests=TRACE_REQUESTS[name], rate=3.0, seed=seed))
    assert found.mean_input_tokens == pytest.approx(mean_in, rel=0.10)
    assert found.mean_output_tokens == pytest.approx(mean_out, rel=0.15)
    assert found.hit_share == pytest.approx(hit_share, abs=0.09)
    assert found.reuse_distance == pytest.approx(distance, rel=0.15)


def test_conversation_has_the_real_traces_quantiles() -> None:
    found = measure(load("conversation", requests=12_031, rate=3.0, seed=1))
    assert found.input_quantiles == pytest.approx((964, 2306, 6909, 15367, 27367, 85400), rel=0.15)
    assert found.output_quantiles[1:] == pytest.approx((156, 350, 472, 597, 1119), rel=0.15)
    assert found.returning_share == pytest.approx(0.387, abs=0.03)
    assert lru_hit_share(load("conversation", requests=2000, rate=3.0, seed=1), cache_tokens=100_000) < 0.1


@pytest.mark.parametrize("percent", [10, 30, 50, 70])
def test_the_sharing_levels_share_what_they_say(percent: int) -> None:
    found = measure(load(f"sharing-{percent}", requests=2000, rate=3.0, seed=2))
    assert found.hit_share == pytest.approx(0.86 * percent / 100, abs=0.015)
    assert found.mean_input_tokens == pytest.approx(3750, rel=0.02)
    assert found.mean_output_tokens == pytest.approx(100, rel=0.02)


def test_mixed_and_shift() -> None:
    assert measure(load("mixed", requests=4000, rate=3.0, seed=2)).hit_share == pytest.approx(0.86 * 0.4, abs=0.02)
    shifted = load("shift", requests=2000, rate=3.0, seed=2)
    assert measure(shifted[:1000]).hit_share == pytest.approx(0.86 * 0.05, abs=0.01)
    assert measure(shifted[1000:]).hit_share == pytest.approx(0.86 * 0.5, abs=0.02)
    assert not {b for each in shifted[:1000] for b in each.block_ids} & {
        b for each in shifted[1000:] for b in each.block_ids
    }


def test_spaced_requests_come_back_after_about_thirty() -> None:
    found = measure(sharing.shared([0.0] * 2000, proportions=(0.5,), seed=1, spaced=True))
    assert found.reuse_distance == pytest.approx(30, rel=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_a_load_is_the_same_for_the_same_seed_only(name: str) -> None:
    first = load(name, requests=200, rate=2.0, seed=5)
    assert first == load(name, requests=200, rate=2.0, seed=5)
    assert first != load(name, requests=200, rate=2.0, seed=6)
    faster = load(name, requests=200, rate=4.0, seed=5)
    assert [each.block_ids for each in faster] == [each.block_ids for each in first]
    assert faster[-1].at_s == pytest.approx(first[-1].at_s / 2)


@settings(max_examples=20)
@given(st.sampled_from(NAMES), st.integers(1, 60), st.integers(0, 1000))
def test_every_load_is_well_formed(name: str, requests: int, seed: int) -> None:
    made = load(name, requests=requests, rate=10.0, seed=seed)
    assert len(made) == requests
    assert all(before.at_s <= after.at_s for before, after in pairwise(made))
    for each in made:
        assert each.input_tokens >= 1
        assert each.output_tokens >= 1
        assert len(each.block_ids) == blocks_of(each.input_tokens, each.block_tokens)
        assert len(set(each.block_ids)) == len(each.block_ids)


@settings(max_examples=10)
@given(st.sampled_from(generated.NAMES), st.integers(0, 1000))
def test_a_block_always_follows_the_same_blocks(name: str, seed: int) -> None:
    """As in the real traces: an id stands for its whole prefix, so prefixes can be told by ids alone."""
    before: dict[int, int] = {}
    for each in load(name, requests=100, rate=10.0, seed=seed):
        for parent, block in pairwise((-1, *each.block_ids)):
            assert before.setdefault(block, parent) == parent


@pytest.mark.parametrize("text", ["poisson", "bursty:0.5", "bursty:4", "on-off:0.25", "constant"])
def test_arrivals_have_the_rate_and_the_burstiness(text: str) -> None:
    process = processes.parse(text)
    gaps = np.diff([0.0, *processes.times(process, 40_000, rate=20.0, seed=3)])
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.1)
    cv = gaps.std() / gaps.mean()
    if process.kind == "on-off":
        assert cv > 2
    else:
        assert cv == pytest.approx(
            {"constant": 0.0, "poisson": 1.0}.get(process.kind, process.shape), rel=0.1, abs=1e-9
        )


def test_on_off_arrivals_come_in_the_on_part_only() -> None:
    times_s = processes.times(processes.Process("on-off", 0.25, 8.0), 5000, rate=10.0, seed=1)
    assert max(at_s % 8.0 for at_s in times_s) <= 2.0


def test_scaled_and_stepped_times() -> None:
    assert processes.scaled([5.0, 6.0, 9.0], factor=0.5) == [0.0, 0.5, 2.0]
    assert processes.scaled([5.0, 6.0, 9.0], rate=1.0) == pytest.approx([0.0, 0.75, 3.0])
    assert processes.stepped([1.0, 2.0, 4.0], at_s=2.0, factor=2.0) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "wrong", ["sometimes", "poisson:2", "bursty", "bursty:0", "bursty:x", "on-off:1.5", "constant:1"]
)
def test_wrong_arrivals_are_named(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"--arrivals: .*poisson, constant, trace"):
        processes.parse(wrong, where="--arrivals")


def test_wrong_loads_are_named() -> None:
    with pytest.raises(UsageError, match="unknown load 'chitchat'"):
        load("chitchat", requests=1, rate=1.0, seed=0)
    with pytest.raises(UsageError, match="rate of 0"):
        load("mixed", requests=1, rate=0.0, seed=0)
    with pytest.raises(UsageError, match="no times of its own"):
        load("mixed", requests=1, rate=1.0, seed=0, arrivals=processes.Process("trace"))
    with pytest.raises(UsageError, match="all requests of this load come at one time"):
        processes.scaled([1.0, 1.0], rate=2.0)


def test_statistics_of_a_load_counted_by_hand() -> None:
    ids = [(1, 2, 3), (1, 2, 4), (5,), (1, 2, 3), (2, 3, 1)]
    made = [Arrival(float(k), len(blocks) * 10, 1, blocks, 10) for k, blocks in enumerate(ids)]
    found = measure(made)
    assert found.hit_share == (20 + 30) / 130  # the last prompt's blocks were all seen, but not as its beginning
    assert found.reuse_distance == (1 + 1 + 2 + 2 + 3) / 5
    assert found.depth_quantiles[2] == 0
    assert found.returning_share == 2 / 5
    assert found.blocks == 8
    assert lru_hit_share(made, cache_tokens=1000) == found.hit_share
    assert lru_hit_share(made, cache_tokens=30) == (20 + 20) / 130
    assert lru_hit_share(made, cache_tokens=0) == 0
    with pytest.raises(UsageError, match="without requests"):
        measure([])
