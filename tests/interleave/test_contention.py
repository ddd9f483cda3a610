"""Whether somebody else is on the way: readings as they were in the lab, and as they should be."""

from __future__ import annotations

import pytest

from headway.interleave.contention import ContentionSettings, ContentionWatch, Reading, Worthwhile

LINK_BPS = 24e6
TICK_S = 0.005
SETTINGS = ContentionSettings()


class Flow:
    """A flow's counters, and a watch that reads them every tick."""

    def __init__(self) -> None:
        self.watch = ContentionWatch()
        self.now_s, self.arrived, self.lost = 5.0, 0.0, 0

    def run(
        self, seconds: float, *, rate_Bps: float = LINK_BPS, queue_s: float = 0.015, capped: bool = False,
        lost: int = 0, flight_s: float | None = None, busy: bool = True,
    ) -> bool:  # fmt: skip
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.arrived += rate_Bps * TICK_S
            self.lost += lost
            trip_s = 0.0002 + queue_s
            flight = rate_Bps * (trip_s if flight_s is None else flight_s)
            self.watch.read(
                Reading(self.now_s, int(self.arrived), int(flight), busy, trip_s, 0.0002, self.lost), capped=capped
            )
        return self.watch.contended


def test_alone_with_its_own_queue_and_its_own_losses_is_alone() -> None:
    flow = Flow()
    for _ in range(5):
        assert not flow.run(0.5, queue_s=0.02, lost=1)
        flow.run(0.5, rate_Bps=0, busy=False)
    assert flow.watch.best_Bps == pytest.approx(LINK_BPS, rel=0.01)


def test_a_token_bucket_s_first_burst_is_not_taken_for_the_link() -> None:
    flow = Flow()
    flow.run(0.02, rate_Bps=2 * LINK_BPS)
    assert not flow.run(0.5)
    assert flow.watch.best_Bps < 1.25 * LINK_BPS


def test_half_of_what_it_had_is_contention_after_two_readings() -> None:
    flow = Flow()
    flow.run(0.5)
    assert not flow.run(SETTINGS.free_s, rate_Bps=LINK_BPS / 2)
    assert flow.run(2 * SETTINGS.free_s, rate_Bps=LINK_BPS / 2)
    assert not flow.run(4 * SETTINGS.free_s)


def test_slow_without_a_queue_is_the_sender_s_own_doing() -> None:
    flow = Flow()
    flow.run(0.5)
    assert not flow.run(0.5, rate_Bps=LINK_BPS / 2, queue_s=0.0)
    assert flow.run(0.5, rate_Bps=LINK_BPS / 2, queue_s=0.0, lost=1)


def test_capped_it_goes_by_the_queue_of_this_moment() -> None:
    flow = Flow()
    flow.run(0.5)
    flow.run(0.1, rate_Bps=LINK_BPS / 2)
    assert flow.run(0.1, rate_Bps=LINK_BPS / 4, capped=True)
    # The smoothed round trip is still long, but hardly anything is on the way.
    assert not flow.run(4 * SETTINGS.capped_s, rate_Bps=LINK_BPS / 4, capped=True, flight_s=0.0005)


def test_a_pause_ends_it() -> None:
    flow = Flow()
    flow.run(0.5)
    assert flow.run(0.2, rate_Bps=LINK_BPS / 2)
    assert not flow.run(TICK_S, rate_Bps=0, busy=False)


def test_a_link_that_became_slower_for_good_is_the_new_link() -> None:
    flow = Flow()
    flow.run(1.0)
    assert flow.run(1.0, rate_Bps=0.7 * LINK_BPS)
    assert not flow.run(60.0, rate_Bps=0.7 * LINK_BPS)


def test_a_kernel_that_tells_no_round_trip_shows_losses_only() -> None:
    watch = ContentionWatch()
    for tick in range(400):
        rate_Bps = LINK_BPS if tick < 200 else LINK_BPS / 2
        watch.read(Reading(tick * TICK_S, int(tick * TICK_S * rate_Bps), 10**5, True, lost=0), capped=False)
    assert not watch.contended


class TestWorthwhile:
    def test_a_job_that_is_not_slowed_is_never_capped(self) -> None:
        worth = Worthwhile()
        for sending_s in (1.0, 1.04, 0.98, 1.03) * 20:
            worth.ended(sending_s, 0.98)
            assert not worth.allowed

    def test_what_helps_goes_on_until_it_is_not_needed(self) -> None:
        worth = Worthwhile()
        for sending_s in (1.8, 1.6, 1.5, 1.4, 1.3, 1.2, 1.15):
            worth.ended(sending_s, 1.0)
            assert worth.allowed
        for _ in range(3):
            worth.ended(1.0, 1.0)
        assert not worth.allowed

    def test_what_does_not_help_is_tried_ever_more_rarely(self) -> None:
        worth, capped = Worthwhile(), []
        for _ in range(200):
            worth.ended(1.5, 1.0)
            capped.append(worth.allowed)
        assert sum(capped[:20]) >= 3
        assert sum(capped) <= 20
        assert capped[-1] is False
