"""Figures, tables and search of the overhead bench; not speed."""

from __future__ import annotations

import itertools
import math

import pytest

from bench.gateway_overhead import not_held, parsed
from bench.overhead_tables import (
    DIRECT,
    Case,
    Measured,
    added_s,
    ladder,
    latency_table,
    peak_table,
    quantile,
    search,
    spread,
)
from bench.raw_client import Load, arrivals_s, prompts, request, unchunked, wrong
from bench.raw_engine import END, HEAD, TOKEN
from headway.errors import UsageError


def measured(target: str, number: int, ttft_p99_s: float, *, sent: int = 100, done: int = 100) -> Measured:
    """With the same figure for all latencies."""
    return Measured(
        target=target,
        rate_Hz=200,
        prompt_bytes=2048,
        round=number,
        sent=sent,
        done=done,
        ttft_p50_s=ttft_p99_s,
        ttft_p99_s=ttft_p99_s,
        e2e_p50_s=ttft_p99_s,
        e2e_p99_s=ttft_p99_s,
        late_p99_s=0.0,
        cpu_s=0.25,
        all_sent=125,
        rss_MB=50.0,
        errors="",
    )


CASE = Case(200, 2048)


class TestFigures:
    @pytest.mark.parametrize(
        ("values", "share", "expected"),
        [([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0, 2.0], 0.5, 1.0), ([5.0], 0.99, 5.0), (list(range(1, 201)), 0.99, 198)],
    )
    def test_a_quantile_is_the_nearest_rank(self, values: list[float], share: float, expected: float) -> None:
        assert quantile(values, share) == expected

    def test_of_nothing_a_quantile_is_infinite(self) -> None:
        assert quantile([], 0.5) == math.inf

    def test_what_is_added_is_held_against_the_same_round(self) -> None:
        found = [measured(DIRECT, 0, 0.001), measured("nginx", 0, 0.003), measured(DIRECT, 1, 0.010)]
        found += [measured("nginx", 1, 0.011), measured("nginx", 2, 5.0)]
        assert added_s(found, "nginx", CASE, lambda m: m.ttft_p99_s) == pytest.approx([0.002, 0.001])

    def test_processor_time_counts_all_requests_of_its_time(self) -> None:
        assert measured("nginx", 0, 0.1).cpu_ms == pytest.approx(2.0)

    def test_a_spread_has_its_range_and_says_when_there_was_no_answer(self) -> None:
        assert spread([0.002, 0.001, 0.009], 1e3, 1) == "2.0 (1.0 to 9.0)"
        assert spread([0.002, -0.001], 1e3, 1, "+") == "+0.5 (-1.0 to +2.0)"
        assert spread([0.002], 1e3, 1) == "2.0"
        assert spread([0.002, math.inf], 1e3, 1) == "failed"

    def test_the_table_shows_the_direct_way_as_it_is_and_others_as_added(self) -> None:
        lines = latency_table([measured(DIRECT, 0, 0.001), measured("nginx", 0, 0.003, done=90)]).splitlines()
        assert lines[2].startswith("| 200x2KiB | direct | 1.00 | 1.00")
        assert lines[3].startswith("| 200x2KiB | nginx | +2.00 | +2.00")
        assert lines[3].endswith("| 2.00 | 50 | 10 of 100 |")


class TestSearch:
    def test_rates_rise_to_the_highest(self) -> None:
        rates = ladder(50, 400, 1.15)
        assert rates[0] == 50
        assert rates[-1] <= 400 < rates[-1] * 1.15 + 10
        assert all(later > rate for rate, later in itertools.pairwise(rates))

    @pytest.mark.parametrize("most", [0, 10, 35, 40, 99])
    def test_finds_the_highest_that_holds(self, most: int) -> None:
        rates = [10.0, 20.0, 30.0, 40.0]
        peak = search("x", rates, lambda rate_Hz: "slow" if rate_Hz > most else "")
        holding = [rate for rate in rates if rate <= most]
        assert peak.rate_Hz == (max(holding) if holding else None)
        assert peak.next_Hz == next((rate for rate in rates if rate > most), None)
        assert peak.why == ("slow" if peak.next_Hz else "")
        assert ("none" in peak_table([peak])) == (not holding)

    def test_a_rate_fails_by_errors_and_by_latency(self) -> None:
        direct = measured(DIRECT, 0, 0.001)
        assert not_held(measured("x", 0, 0.005), direct, 0.005) == ""
        assert "TTFT p99 +6.0 ms" in not_held(measured("x", 0, 0.007), direct, 0.005)
        assert "1 of 100 failed" in not_held(measured("x", 0, 0.001, done=99), direct, 0.005)
        assert not_held(measured(DIRECT, 0, 0.007), direct, 0.005) != ""


class TestCases:
    def test_are_read(self) -> None:
        assert parsed("200x2,10x256") == [Case(200, 2048), Case(10, 262144)]
        assert [case.name for case in parsed("200x2,10x256")] == ["200x2KiB", "10x256KiB"]

    @pytest.mark.parametrize("text", ["200", "x2", "0x2", "5x-1", "axb", ""])
    def test_nonsense_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match="--cases"):
            parsed(text)


class TestRequests:
    LOAD = Load(rate_Hz=100, warm_s=1, time_s=4, prompt_bytes=2048, chunks=50, seed=3)

    def test_come_from_the_seed(self) -> None:
        other = Load(rate_Hz=100, warm_s=1, time_s=4, prompt_bytes=2048, chunks=50, seed=4)
        assert arrivals_s(self.LOAD) == arrivals_s(self.LOAD) != arrivals_s(other)
        assert prompts(self.LOAD, 5) == prompts(self.LOAD, 5) != prompts(other, 5)

    def test_are_as_many_as_asked_for(self) -> None:
        times = arrivals_s(self.LOAD)
        assert 400 < len(times) < 600
        assert times == sorted(times)
        assert times[-1] < 5

    def test_prompts_are_as_long_as_said_and_some_share_a_beginning(self) -> None:
        texts = prompts(self.LOAD, 40)
        assert {len(text) for text in texts} == {2048}
        assert len({text[:1024] for text in texts}) < len(set(texts)) == 40

    def test_says_how_long_its_body_is(self) -> None:
        head, _, body = request("Hi", "sk-1").partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        assert b"authorization: Bearer sk-1" in head


class TestAnswers:
    WHOLE = HEAD + TOKEN * 50 + END

    def test_a_whole_one_is_not_wrong(self) -> None:
        assert wrong(self.WHOLE, 50) == ""

    def test_missing_tokens_other_statuses_and_broken_chunks_are(self) -> None:
        assert wrong(self.WHOLE, 51) == "50 of 51 tokens"
        assert wrong(self.WHOLE.replace(b"200 OK", b"429 No"), 50) == "status 429"
        assert wrong(HEAD + b"zz\r\n" + END, 50) == "broken chunks"
        assert wrong(HEAD + TOKEN, 1) == "broken chunks"

    def test_chunks_are_put_together(self) -> None:
        assert unchunked(b"3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n") == b"abcde"
