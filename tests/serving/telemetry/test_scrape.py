"""Asking real HTTP servers for their metrics, also those that answer with nonsense or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from headway.serving.gateway.scrape import MOST_BYTES, Scraper, ScrapeRules
from headway.serving.replica import EngineReport, ReplicaSpec

LIMIT_S = 10.0
RULES = ScrapeRules(interval_s=0.02, timeout_s=0.3, at_most_s=0.05)
PAGE = b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"


class Engine:
    """Answers `/metrics`.

    Attributes:
        status, body: of the answer.
        delay_s: before it.
        asked: how often.
        most: questions under way at once.
    """

    def __init__(self) -> None:
        self.status, self.body, self.delay_s = 200, PAGE, 0.0
        self.asked = self.most = self._now = 0
        self.headers: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        self._now += 1
        self.most = max(self.most, self._now)
        self.headers = dict(request.headers)
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self._now -= 1
        return web.Response(status=self.status, body=self.body)


@asynccontextmanager
async def engine() -> AsyncIterator[tuple[Engine, str]]:
    fake = Engine()
    app = web.Application()
    app.router.add_get("/metrics", fake.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield fake, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Told:
    """What the scraper said."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, EngineReport]] = []
        self.silent: list[tuple[str, str]] = []

    def report(self, name: str, report: EngineReport) -> None:
        self.reports.append((name, report))

    def hush(self, name: str, why: str) -> None:
        self.silent.append((name, why))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0.005)


def scraping(
    test: Callable[[Engine, str, Scraper, Told], Awaitable[None]], headers: dict[str, str] | None = None
) -> None:
    async def run() -> None:
        async with engine() as (fake, url), aiohttp.ClientSession() as session:
            told = Told()
            scraper = Scraper(session, report=told.report, silent=told.hush, rules=RULES, headers=headers)
            try:
                await test(fake, url, scraper, told)
            finally:
                await scraper.close()

    asyncio.run(run())


def test_reports_come_again_and_again() -> None:
    async def test(fake: Engine, url: str, scraper: Scraper, told: Told) -> None:
        scraper.follow([ReplicaSpec("a", url)])
        await until(lambda: len(told.reports) >= 3)
        assert told.reports[0] == ("a", EngineReport(running=2, waiting=1))
        fake.body = PAGE.replace(b" 2", b" 9")
        await until(lambda: told.reports[-1][1].running == 9)
        assert fake.headers["Authorization"] == "Bearer k"
        assert not told.silent
        assert not scraper.failures

    scraping(test, {"Authorization": "Bearer k"})


def test_one_that_left_is_asked_no_more_and_one_that_moved_is_asked_there() -> None:
    async def test(fake: Engine, url: str, scraper: Scraper, told: Told) -> None:
        scraper.follow([ReplicaSpec("a", url)])
        await until(lambda: len(told.reports) >= 1)
        async with engine() as (moved, there):
            moved.body = PAGE.replace(b" 2", b" 5")
            scraper.follow([ReplicaSpec("a", there)])
            await until(lambda: told.reports[-1][1].running == 5)
            scraper.follow([])
            asked = fake.asked
            await asyncio.sleep(0.1)
            assert fake.asked <= asked + 1  # one may have been under way

    scraping(test)


@pytest.mark.parametrize(
    ("status", "body", "kind", "named"),
    [
        (200, b"<html>", "garbage", "HTML"),
        (200, b"\xff\xfe\x00", "garbage", "none of the names"),
        (200, PAGE.replace(b"2", b"NaN"), "garbage", "is nan"),
        (404, b"", "status", "answers 404"),
        (302, b"", "status", "answers 302"),
        (200, b"x" * (MOST_BYTES + 1), "oversized", "more than 4 MiB"),
    ],
)
def test_nonsense_is_no_report_is_said_once_and_counted(
    status: int, body: bytes, kind: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(fake: Engine, url: str, scraper: Scraper, told: Told) -> None:
        fake.status, fake.body = status, body
        scraper.follow([ReplicaSpec("a", url)])
        await until(lambda: scraper.failures[kind] >= 2)
        assert not told.reports
        name, why = told.silent[0]
        assert name == "a"
        assert named in why
        fake.status, fake.body = 200, PAGE
        await until(lambda: bool(told.reports))

    with caplog.at_level(logging.WARNING):
        scraping(test)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("headway")]
    assert len(lines) == 2
    assert named in lines[0]
    assert "can be read again" in lines[1]


def test_a_slow_engine_has_one_question_under_way_and_is_not_called_silent() -> None:
    async def test(fake: Engine, url: str, scraper: Scraper, told: Told) -> None:
        fake.delay_s = LIMIT_S
        scraper.follow([ReplicaSpec("a", url)])
        await until(lambda: scraper.failures["timeout"] >= 2)
        assert fake.most == 1
        assert not told.silent
        fake.delay_s = 0.0
        await until(lambda: bool(told.reports))

    scraping(test)


def test_an_engine_that_is_gone_does_not_disturb_the_others() -> None:
    async def test(fake: Engine, url: str, scraper: Scraper, told: Told) -> None:
        async with engine() as (_, gone):
            pass
        scraper.follow([ReplicaSpec("gone", gone), ReplicaSpec("a", url)])
        await until(lambda: len(told.reports) >= 5 and scraper.failures["connection"] >= 2)
        assert {name for name, _ in told.reports} == {"a"}

    scraping(test)


def test_one_without_metrics_is_asked_less_and_less() -> None:
    async def test(fake: Engine, url: str, scraper: Scraper, told: Told) -> None:
        async with aiohttp.ClientSession() as session, engine() as (dumb, there):
            dumb.status = 404
            patient = Scraper(
                session,
                report=told.report,
                silent=told.hush,
                rules=ScrapeRules(interval_s=0.01, timeout_s=1.0, at_most_s=60.0),
            )
            patient.follow([ReplicaSpec("dumb", there)])
            await asyncio.sleep(0.6)
            await patient.close()
            assert 2 <= dumb.asked <= 8  # 0.02 + 0.04 + ... + 0.64 s; at the plain interval it would be 60

    scraping(test)
