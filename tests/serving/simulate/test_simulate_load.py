"""A load for the simulation, and results in sum."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from headway.decide.journal import EventRecord, MemoryJournal, Record, ServingRecord
from headway.errors import UsageError
from headway.serving.simulate.load import load
from headway.serving.simulate.result import Collector, Row, summary
from headway.serving.workload.arrival import Arrival
from tests.serving.simulate.loads import arrival

ROW = Row("0", 0.0, "a", "rule", 1, 200, 100, 11, 64, 48, None, 0.0, 1.0, 2.0)


def test_two_prompts_share_a_chain_as_far_as_their_ids_agree() -> None:
    one, two = load([arrival(0.0, first_block=100, shared=3), arrival(1.0, first_block=200, shared=3)]).requests
    assert one.job.blocks == one.request.blocks
    assert one.job.blocks[:3] == two.job.blocks[:3]
    assert not set(one.job.blocks[3:]) & set(two.job.blocks[3:])


def test_coarser_blocks_are_shared_where_all_of_them_agree() -> None:
    arrivals = [Arrival(0.0, 150, 1, tuple(range(10)), 16), Arrival(0.0, 150, 1, (*range(7), 90, 91, 92), 16)]
    coarse = load(arrivals, block_tokens=64)
    one, two = coarse.requests
    assert coarse.block_tokens == one.request.block_tokens == 64
    assert len(one.job.blocks) == 3
    assert one.job.blocks[0] == two.job.blocks[0]
    assert one.job.blocks[1:] != two.job.blocks[1:]
    with pytest.raises(UsageError, match="request 0 has blocks of 16 tokens"):
        load(arrivals, block_tokens=40)


def test_a_load_can_be_stretched_and_cut() -> None:
    it = load([arrival(float(at)) for at in range(1, 11)])
    assert it.rate == 1.0
    fast = it.scaled(4.0)
    assert fast.rate == pytest.approx(4.0)
    assert [one.at_s for one in fast.requests[:2]] == [0.25, 0.5]
    assert fast.requests[3].job is it.requests[3].job
    assert len(it.first(3).requests) == 3
    with pytest.raises(UsageError, match="cannot be stretched to 0"):
        it.scaled(0)


def test_the_sum_of_some_rows() -> None:
    rows = [
        ROW,
        replace(ROW, id="1", at_s=1.0, replica="b", ttft_s=3.0, e2e_s=5.0, cached_tokens=None),
        replace(ROW, id="2", at_s=2.0, status=502, ttft_s=None),
        replace(ROW, id="3", at_s=3.0, status=503, replica="", ttft_s=None),
        replace(ROW, id="4", at_s=4.0, status=400, ttft_s=None),
    ]
    told = summary(rows, slo_ttft_s=2.0)
    assert (told.requests, told.done, told.refused, told.failed) == (5, 2, 2, 1)
    assert [told.ttft.mean_s, told.ttft.p50_s, told.ttft.p90_s] == pytest.approx([2.0, 2.0, 2.8])
    assert [told.e2e.mean_s, told.tpot.mean_s] == pytest.approx([3.5, 0.15])
    assert (told.rate, told.goodput) == (1.25, 0.25)
    assert told.cached_share == pytest.approx(48 / 200)
    assert told.per_replica == {"a": 3, "b": 1}
    assert summary(rows, slo_tpot_s=0.12).goodput == 0.25


def test_the_warm_up_is_left_out() -> None:
    rows = [replace(ROW, id=str(index), at_s=float(index), ttft_s=float(index)) for index in range(10)]
    assert summary(rows, warm_up_requests=4).ttft.mean_s == 6.5
    assert summary(rows, warm_up_s=8.0).requests == 2
    assert summary(rows, warm_up_requests=4, warm_up_s=8.0).requests == 2
    nothing = summary(rows, warm_up_s=99.0)
    assert nothing.requests == 0
    assert math.isnan(nothing.ttft.mean_s)


def test_a_row_with_one_token_has_no_time_per_token() -> None:
    assert replace(ROW, output_tokens=1).tpot_s is None
    assert replace(ROW, ttft_s=None).tpot_s is None


def test_a_journal_behind_the_collector_gets_every_record() -> None:
    onward = MemoryJournal()
    collector = Collector(onward)
    joined = ServingRecord(t_s=0.0, event="join", what="a joined")
    records: list[Record] = [joined, EventRecord(t_s=0.0, event="bw", phase="end", what="")]
    for record in records:
        collector.write(record)
    assert onward.records == records
    assert collector.records == [joined]
    assert collector.rows == []
