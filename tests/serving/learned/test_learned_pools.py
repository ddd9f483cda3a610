"""The pools, and the coreset that decides what stays."""

from __future__ import annotations

import numpy as np
import pytest

from headway.serving.learned.features import WIDTH
from headway.serving.learned.pools import Pools, pick
from headway.serving.learned.samples import Samples
from headway.serving.learned.training import Fit, fit


def numbered(first: int, count: int) -> Samples:
    """Samples whose TTFT is their number, in seconds."""
    rows = np.zeros((count, WIDTH), dtype=np.float32)
    rows[:, 0] = np.arange(first, first + count)
    return Samples(rows, np.arange(first, first + count, dtype=np.float32))


def filled(count: int, *, fresh: int = 5, replay: int = 4) -> Pools:
    pools = Pools(fresh=fresh, replay=replay, seed=1)
    for row, ttft_s in zip(numbered(0, count).rows, range(count), strict=True):
        pools.add(row, float(ttft_s))
    return pools


@pytest.mark.parametrize("count", [3, 5, 8, 10, 19, 20, 21, 57])
def test_fresh_is_the_newest_in_order_and_left_is_what_went_before(count: int) -> None:
    pools = filled(count)
    first = max(0, count - 5)
    assert list(pools.fresh.ttft_s) == list(range(first, count))
    assert list(pools.fresh.rows[:, 0]) == list(range(first, count))
    assert list(pools.left.ttft_s) == list(range(max(0, first - 5), first))


def test_only_what_was_picked_enters_replay_and_nothing_is_offered_twice() -> None:
    pools = filled(8)
    left = pools.left
    assert len(left) == 3
    pools.add(left.rows[0], 8.0)
    pools.keep(len(left), left[np.array([1])])
    assert list(pools.replay.ttft_s) == [1.0]
    assert list(pools.left.ttft_s) == [3.0]
    assert len(pools) == 6


def test_replay_that_is_full_loses_older_ones_and_never_the_newest() -> None:
    pools = filled(5)
    for first in range(0, 200, 2):
        pools.keep(0, numbered(first, 2))
    kept = set(pools.replay.ttft_s)
    assert len(pools.replay) == 4
    assert {198.0, 199.0} <= kept


def test_what_was_saved_can_be_filled_in_again() -> None:
    pools = Pools(fresh=5, replay=4, seed=1)
    pools.fill(numbered(0, 7), numbered(50, 6))
    assert list(pools.fresh.ttft_s) == [2, 3, 4, 5, 6]
    assert list(pools.replay.ttft_s) == [52, 53, 54, 55]
    assert len(pools.left) == 0


def test_the_coreset_has_one_of_each_kind_before_a_second_of_any() -> None:
    rng = np.random.default_rng(0)
    kinds = rng.uniform(0, 100, (6, WIDTH)).astype(np.float32)
    model = fit(
        Samples(rng.uniform(0, 100, (400, WIDTH)).astype(np.float32), np.full(400, 0.5, np.float32)),
        Fit(epochs=1),
        seed=1,
    )
    sizes = (300, 50, 5, 1, 1, 40)
    rows = np.repeat(kinds, sizes, axis=0)
    kind = np.repeat(np.arange(6), sizes)
    order = rng.permutation(len(rows))
    samples = Samples(rows[order], np.full(len(rows), 20.0, np.float32))
    picked = pick(samples, 6, model)
    assert sorted(kind[order][picked]) == [0, 1, 2, 3, 4, 5]


def test_the_coreset_has_no_sample_twice_and_all_if_asked() -> None:
    model = fit(numbered(0, 300), Fit(epochs=1), seed=1)
    samples = numbered(0, 30)
    assert sorted(pick(samples, 30, model)) == list(range(30))
    assert sorted(pick(samples, 99, model)) == list(range(30))
    assert len(set(pick(samples, 12, model))) == 12
    assert len(pick(samples, 0, model)) == 0
