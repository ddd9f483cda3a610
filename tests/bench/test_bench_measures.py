"""Sizes, bandwidths and statistics against their definitions."""

from __future__ import annotations

import math

import pytest

from headway.bench.measures import bus_factor, count_of, percentile, size_of, sizes, variation_percent
from headway.bench.place import count_words
from headway.collectives.plan import Collective
from headway.errors import UsageError


def test_sizes_double_add_and_end() -> None:
    assert sizes(1024, 8192) == [1024, 2048, 4096, 8192]
    assert sizes(1024, 9000, factor=4) == [1024, 4096]
    assert sizes(100, 350, step_bytes=100) == [100, 200, 300]
    assert sizes(0, 2) == [0, 1, 2]
    assert sizes(8, 8) == [8]


def test_a_factor_close_to_one_still_ends() -> None:
    assert sizes(4, 8, factor=1.01) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("first", "last", "factor", "step", "where"),
    [(8, 4, None, None, "-e"), (8, 16, 1.0, None, "-f"), (8, 16, None, 0, "-i"), (8, 16, 2.0, 4, "-f and -i")],
)
def test_bad_ranges_name_the_flag(first: int, last: int, factor: float | None, step: int | None, where: str) -> None:
    with pytest.raises(UsageError, match=where):
        sizes(first, last, factor=factor, step_bytes=step)


def test_counts_are_per_rank_where_nccl_tests_counts_so() -> None:
    assert count_of(Collective.ALL_REDUCE, 4096, 4, 8) == 1024
    assert count_of(Collective.ALL_GATHER, 4096, 4, 8) == 128
    assert count_of(Collective.REDUCE_SCATTER, 4100, 4, 8) == 128
    assert size_of(Collective.REDUCE_SCATTER, 128, 4, 8) == 4096
    assert size_of(Collective.BROADCAST, 1024, 4, 8) == 4096


def test_bus_factors() -> None:
    assert bus_factor(Collective.ALL_REDUCE, 8) == 2 * 7 / 8
    assert bus_factor(Collective.ALL_GATHER, 8) == bus_factor(Collective.REDUCE_SCATTER, 8) == 7 / 8
    assert bus_factor(Collective.BROADCAST, 8) == bus_factor(Collective.REDUCE, 8) == 1


def test_statistics() -> None:
    values = [float(i) for i in range(1, 101)]
    assert percentile(values, 99) == 99
    assert percentile([5.0], 99) == 5
    assert variation_percent([3.0]) == 0
    assert math.isclose(variation_percent([1.0, 3.0]), 100 * math.sqrt(2) / 2)


def test_one_rank_is_no_ranks() -> None:
    assert count_words(1, "rank") == "1 rank"
    assert count_words(4, "rank") == "4 ranks"
