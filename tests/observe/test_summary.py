"""Samples into bins, and the compact form on the control channel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.observe.samples import FlowSample
from headway.observe.summary import MAX_BINS, OperationSpan, RankSummary, SummaryError, summarise


def sample(
    start_s: float, end_s: float, acked: int, *, dst: int = 1, operation: int = 0, busy: float = 1.0
) -> FlowSample:
    return FlowSample(
        src=0,
        dst=dst,
        start_s=start_s,
        end_s=end_s,
        acked_bytes=acked,
        busy_s=busy * (end_s - start_s),
        rwnd_limited_s=0.0,
        sndbuf_limited_s=0.0,
        rtt_s=0.002,
        min_rtt_s=0.001,
        retransmits=1,
        operation=operation,
    )


def test_bytes_fall_into_the_bins_that_their_sample_covers() -> None:
    summary = summarise(0, [sample(0.0, 0.5, 1000), sample(0.5, 1.0, 3000)], [OperationSpan(0, 0.0, 1.0)])
    flow = summary.flows[0]
    assert sum(flow.bytes_by_bin[: MAX_BINS // 2]) == pytest.approx(1000)
    assert sum(flow.bytes_by_bin[MAX_BINS // 2 :]) == pytest.approx(3000)
    assert flow.limited_by_bin == pytest.approx([1.0] * MAX_BINS)
    assert (flow.acked_bytes, flow.samples, flow.retransmits) == (4000, 2, 2)
    assert flow.rate_Bps == pytest.approx(4000)


def test_a_pause_before_the_operation_does_not_thin_its_sample() -> None:
    summary = summarise(0, [sample(0.0, 10.0, 1000, busy=0.1)], [OperationSpan(0, 9.0, 10.0)])
    assert summary.flows[0].limited_by_bin == pytest.approx([1.0] * MAX_BINS)
    assert sum(summary.bin_s) == pytest.approx(1.0)


def test_operations_share_the_bins_and_the_oldest_are_left_out() -> None:
    spans = [OperationSpan(number, number, number + 1.0) for number in range(MAX_BINS + 4)]
    samples = [sample(span.start_s, span.end_s, span.number, operation=span.number) for span in spans]
    summary = summarise(0, samples, spans)
    assert summary.flows[0].bytes_by_bin == tuple(float(number) for number in range(4, MAX_BINS + 4))


def test_samples_of_other_operations_are_ignored() -> None:
    summary = summarise(0, [sample(0, 1, 5, operation=7)], [OperationSpan(0, 0.0, 1.0)])
    assert summary.flows == ()
    assert len(summary.bin_s) == MAX_BINS


def test_spans_come_from_the_samples_where_none_are_given() -> None:
    samples = [sample(0, 1, 10), sample(0.5, 1, 20, dst=2), sample(1, 3, 40, operation=1)]
    summary = summarise(0, samples)
    assert summary.bin_s == pytest.approx([1 / 8] * 8 + [2 / 8] * 8)
    assert [flow.acked_bytes for flow in summary.flows] == [50, 20]


def test_nothing_sampled_makes_an_empty_summary() -> None:
    assert RankSummary.from_json(summarise(3, []).to_json()) == RankSummary(3, (), ())


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 5), st.floats(0, 2), st.floats(0.001, 1), st.integers(0, 10**9)),
        max_size=30,
    )
)
def test_no_byte_is_lost_on_the_way(rows: list[tuple[int, int, float, float, int]]) -> None:
    spans = [OperationSpan(number, 2.0 * number, 2.0 * number + 1.5) for number in range(6)]
    samples = [
        sample(2 * number + start, 2 * number + start + length, acked, dst=dst, operation=number)
        for dst, number, start, length, acked in rows
    ]
    summary = summarise(0, samples, spans)
    assert sum(sum(flow.bytes_by_bin) for flow in summary.flows) == pytest.approx(sum(row[4] for row in rows))
    assert all(0 <= share <= 1 for flow in summary.flows for share in flow.limited_by_bin)
    back = RankSummary.from_json(summary.to_json())
    for flow, copy in zip(summary.flows, back.flows, strict=True):
        assert (flow.src, flow.dst, flow.acked_bytes, flow.samples) == (
            copy.src,
            copy.dst,
            copy.acked_bytes,
            copy.samples,
        )
        peak = max(flow.bytes_by_bin)
        assert copy.bytes_by_bin == pytest.approx(flow.bytes_by_bin, abs=peak / 255 + 1)
        assert copy.limited_by_bin == pytest.approx(flow.limited_by_bin, abs=1 / 255)


def test_a_flow_takes_about_a_hundred_bytes() -> None:
    one = summarise(0, [sample(0, 1, 12_345_678)], [OperationSpan(0, 0, 1)])
    two = summarise(0, [sample(0, 1, 12_345_678), sample(0, 1, 98_765_432, dst=2)], [OperationSpan(0, 0, 1)])
    assert len(two.to_json()) - len(one.to_json()) <= 120


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1,[0.1]]",
     '[0,[0.1],[[0,1,5,0.1,1,0,1,1,5,"AA==","!"]]]',
     '[0,[0.1],[[0,1,5,0.1,1,0,1,1,5,"","/w=="]]]',
     '[0,[0.1],[["a",1,5,0.1,1,0,1,1,5,"/w==","/w=="]]]'],
)  # fmt: skip
def test_what_is_no_summary_is_refused(text: str) -> None:
    with pytest.raises(SummaryError, match="not a rank's summary"):
        RankSummary.from_json(text)
