"""What the fault bench makes of bytes, of metrics and of outcomes; and that its rude engine does wrong."""

from __future__ import annotations

import asyncio

import pytest

from bench.fault_cases import Case, Expected, client_cases, differs, engine_cases, worst
from bench.fault_client import Got, ask, body, exchange, get, post, told
from bench.fault_lab import counters, recorded
from bench.fault_processes import Play, plays, stream_count
from bench.gateway_faults import Row, chosen, shown
from bench.raw_engine import END, HEAD, TOKEN, chunk
from bench.rude_engine import FEW, WAYS, Rude
from headway.errors import UsageError

ERROR = b'{"error": {"message": "m", "code": "broken"}}'


class TestTold:
    @pytest.mark.parametrize(
        ("raw", "closed", "status", "end", "code", "tokens"),
        [
            (HEAD + TOKEN * 3 + END, False, 200, "whole", "", 3),
            (HEAD + TOKEN * 3, True, 200, "cut", "", 3),
            (HEAD + TOKEN * 3, False, 200, "hangs", "", 3),
            (HEAD + TOKEN + chunk(b"data: " + ERROR + b"\n\n") + b"0\r\n\r\n", False, 200, "error event", "broken", 1),
            (HEAD + TOKEN + b"0\r\n\r\n", False, 200, "no [DONE]", "", 1),
            (
                b"HTTP/1.1 502 Bad\r\ncontent-length: %d\r\n\r\n%s" % (len(ERROR), ERROR),
                False,
                502,
                "whole",
                "broken",
                0,
            ),
            (b"HTTP/1.1 502 Bad\r\ncontent-length: 100\r\n\r\n{", True, 502, "cut", "", 0),
            (b"HTTP/1.0 200 OK\r\n\r\n{}", True, 200, "whole", "", 0),
            (b"", True, 0, "nothing", "", 0),
            (b"HTTP/1.1 200", False, 0, "hangs", "", 0),
        ],
    )
    def test_says_what_bytes_amount_to(
        self, raw: bytes, closed: bool, status: int, end: str, code: str, tokens: int
    ) -> None:
        got = told(raw, 0.5, closed=closed)
        assert (got.status, got.end, got.code, got.tokens, got.after_s) == (status, end, code, tokens, 0.5)


class TestExpectations:
    GOT = Got(200, "whole", "", 5, 0.1, {"retry-after": "1"})

    def test_what_is_expected_does_not_differ(self) -> None:
        expected = Expected((200, 502), ("whole",), 1.0, 0.05, ("retries 1",), 5, "retry-after")
        assert differs(expected, self.GOT, "requests 200 1, retries 1") == ""

    @pytest.mark.parametrize(
        ("expected", "word"),
        [
            (Expected((502,), ("whole",)), "status 200"),
            (Expected((200,), ("cut",)), "end 'whole'"),
            (Expected((200,), ("whole",), 0.05), "0.10 s"),
            (Expected((200,), ("whole",), 2.0, 1.0), "0.10 s"),
            (Expected((200,), ("whole",), tokens=6), "5 of 6"),
            (Expected((200,), ("whole",), header="x-more"), "no x-more"),
            (Expected((200,), ("whole",), recorded=("retries 1",)), "not recorded"),
        ],
    )
    def test_each_difference_is_told(self, expected: Expected, word: str) -> None:
        assert word in differs(expected, self.GOT, "requests 200 1")

    def test_the_worst_is_what_counts(self) -> None:
        fine, late = Got(200, "whole", "", 1, 0.1), Got(200, "whole", "", 1, 0.9)
        broken, refused, nothing = (
            Got(200, "cut", "", 1, 0.1),
            Got(502, "whole", "", 0, 0.1),
            Got(0, "nothing", "", 0, 0),
        )
        assert worst([fine, late]) is late
        assert worst([late, broken]) is broken
        assert worst([broken, refused]) is refused
        assert worst([refused, nothing, fine]) is nothing

    def test_no_two_rows_have_one_name(self) -> None:
        rows: list[Case | Play] = [*engine_cases(), *plays(10), *client_cases()]
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)

    def test_rows_are_chosen_by_words_of_their_names(self) -> None:
        rows = engine_cases()
        assert chosen(rows, "") == rows
        assert 0 < len(chosen(rows, "429")) < len(rows)
        with pytest.raises(UsageError, match="--only"):
            chosen(rows, "no such row")

    def test_the_table_says_which_rows_differ(self) -> None:
        fine = Row("a", "200, whole", "200, whole", 0.1, "requests 200 1", "", "", "")
        wrong = Row("b", "200, whole", "502, whole", 0.1, "", "1 open requests", "", "status 502")
        lines = shown([fine, wrong]).splitlines()
        assert lines[2].endswith("| nothing | yes |")
        assert lines[3].endswith("| 1 open requests | NO: status 502 |")

    def test_streams_are_no_more_than_file_descriptors_allow(self) -> None:
        assert stream_count(100) == 100
        assert 0 < stream_count(10**9) <= 10**9


class TestMetrics:
    PAGE = """\
# TYPE headway_gateway_requests_total counter
headway_gateway_requests_total{code="200",model="m",replica="a"} 3.0
headway_gateway_requests_total{code="200",model="m",replica="b"} 2.0
headway_gateway_requests_created{code="200",model="m",replica="a"} 1.7e+09
headway_gateway_refused_total{reason="body"} 1.0
headway_gateway_open_requests 4.0
headway_gateway_ttft_seconds_bucket{le="0.1",model="m"} 3.0
"""

    def test_are_read_over_all_replicas(self) -> None:
        assert counters(self.PAGE) == {"requests 200": 5, "refused body": 1, "open_requests": 4}

    def test_only_what_was_gained_is_told(self) -> None:
        assert recorded({"requests 200": 4}, counters(self.PAGE)) == "refused body 1, requests 200 1"


class TestRudeEngine:
    """Over the network, since what it does wrong is what comes over the network."""

    async def _got(self, way: str, **more: float) -> Got:
        engine = Rude(asyncio.get_running_loop())
        await engine.start()
        try:
            return await ask(engine.port, f"#{way}", limit_s=more.get("limit_s", 2.0))
        finally:
            engine.stop()

    @pytest.mark.parametrize(
        ("way", "status", "end", "tokens"),
        [
            ("", 200, "whole", 20),
            ("500", 500, "whole", 0),
            ("429", 429, "whole", 0),
            ("html", 200, "whole", 0),
            ("close", 0, "nothing", 0),
            ("reset", 0, "nothing", 0),
            ("short", 200, "cut", 0),
            ("close-mid", 200, "cut", FEW),
            ("reset-mid", 200, "cut", FEW),
            ("no-done", 200, "no [DONE]", FEW),
            ("bad-events", 200, "whole", 0),
        ],
    )
    def test_does_wrong_as_it_is_asked(self, way: str, status: int, end: str, tokens: int) -> None:
        got = asyncio.run(self._got(way))
        assert (got.status, got.end, got.tokens) == (status, end, tokens)

    @pytest.mark.parametrize(("way", "tokens"), [("stall-first", 0), ("stall-head", 0), ("stall-mid", FEW)])
    def test_stalls(self, way: str, tokens: int) -> None:
        got = asyncio.run(self._got(way, limit_s=0.3))
        assert (got.end, got.tokens) == ("hangs", tokens)

    def test_a_polite_one_does_nothing_wrong(self) -> None:
        async def play() -> list[Got]:
            engine = Rude(asyncio.get_running_loop(), polite=True)
            await engine.start()
            try:
                return [await ask(engine.port, f"#{way}", limit_s=2.0) for way in WAYS]
            finally:
                engine.stop()

        assert all(got.end == "whole" and got.tokens == 20 for got in asyncio.run(play()))

    def test_holds_streams_until_told_to_go_on_and_counts_them(self) -> None:
        async def play() -> tuple[int, Got, int, str]:
            engine = Rude(asyncio.get_running_loop())
            await engine.start()
            try:
                held = asyncio.create_task(ask(engine.port, "#hold", limit_s=5.0))
                await asyncio.sleep(0.1)
                running = engine.running
                page = await get(engine.port, "/metrics")
                await exchange(engine.port, [post(body("#go-on"))])
                return running, await held, engine.running, page
            finally:
                engine.stop()

        running, got, after, page = asyncio.run(play())
        assert running == 1
        assert 'num_requests_running{model_name="m"} 1' in page
        assert (got.end, got.tokens, after) == ("whole", FEW, 0)
