"""The send buffer grows while it is what holds a flow back, and stops at a short queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.observe.samples import FlowSample
from headway.transport.send_window import FIRST_BYTES, LANE_BYTES, MOST_BYTES, next_window

FULL = FlowSample(
    src=0,
    dst=1,
    start_s=0.0,
    end_s=0.04,
    acked_bytes=1 << 20,
    busy_s=0.04,
    rwnd_limited_s=0.0,
    sndbuf_limited_s=0.036,
    rtt_s=0.0003,
    min_rtt_s=0.0002,
)


def test_it_doubles_while_the_buffer_is_full_and_no_queue_stands() -> None:
    assert next_window(FIRST_BYTES, FULL) == 2 * FIRST_BYTES
    assert next_window(MOST_BYTES, FULL) == MOST_BYTES


def test_a_queue_stops_it() -> None:
    assert next_window(FIRST_BYTES, replace(FULL, rtt_s=0.0025)) == FIRST_BYTES


def test_on_a_long_path_a_queue_as_long_as_the_path_is_allowed() -> None:
    assert next_window(FIRST_BYTES, replace(FULL, rtt_s=0.055, min_rtt_s=0.04)) == 2 * FIRST_BYTES


def test_a_long_queue_halves_it_down_to_where_it_began() -> None:
    standing = replace(FULL, rtt_s=0.02)
    assert next_window(8 * FIRST_BYTES, standing) == 4 * FIRST_BYTES
    assert next_window(FIRST_BYTES, standing) == FIRST_BYTES
    assert next_window(FIRST_BYTES, standing, LANE_BYTES) == FIRST_BYTES // 2
    assert next_window(LANE_BYTES, standing, LANE_BYTES) == LANE_BYTES


@pytest.mark.parametrize(
    "sample",
    [replace(FULL, rtt_s=None), replace(FULL, min_rtt_s=None), replace(FULL, sndbuf_limited_s=None)],
    ids=["rtt", "least rtt", "limited time"],
)
def test_what_is_not_known_changes_nothing(sample: FlowSample) -> None:
    assert next_window(4 * FIRST_BYTES, sample) == 4 * FIRST_BYTES


def test_a_flow_that_the_buffer_does_not_hold_back_keeps_it() -> None:
    assert next_window(FIRST_BYTES, replace(FULL, sndbuf_limited_s=0.01)) == FIRST_BYTES


def test_a_full_buffer_is_the_networks_doing_only_behind_a_queue() -> None:
    assert replace(FULL, rtt_s=0.005).network_limited_s == pytest.approx(0.04)
    assert FULL.network_limited_s == pytest.approx(0.004)
