"""What a client gets of an engine's answer, byte for byte, and what it gets where the engine fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from headway.decide.journal import RequestRecord
from headway.decide.journal_file import read_journal
from tests.fakes.engine import engines
from tests.fakes.gateway import gateway
from tests.fakes.scripted_engine import END, HOLD, RESET, SSE, Step, chunk, event, scripted, whole

PATH = "/v1/chat/completions"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}\n\n'
DONE = b"data: [DONE]\n\n"
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,'
    b'"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
)
GOOD: tuple[Step, ...] = (SSE + chunk(ROLE + event("a")), chunk(event("b") + DONE) + END)
FAST: dict[str, Any] = {
    "timeouts": {"connect_s": 0.3, "first_byte_s": 0.3, "stall_s": 0.3, "client_s": 0.3, "total_s": 5}
}


def body(**more: Any) -> dict[str, Any]:
    return {"model": "test-model", "stream": True, "messages": [{"role": "user", "content": "hi"}], **more}


async def ask(url: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, also of an answer that breaks off."""
    async with aiohttp.ClientSession() as session, session.post(url + PATH, json=body(**more)) as answer:
        parts = []
        try:
            while part := await answer.content.readany():
                parts.append(part)
        except aiohttp.ClientPayloadError:
            parts.append(b"<broken>")
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, b"".join(parts)


def test_a_stream_comes_byte_for_byte_whatever_its_chunks() -> None:
    text = ROLE + event("hé") + b": a comment\r\n\r\ndata:no json\r\n\r\n" + event("x" * 100_000) + USAGE + DONE
    cuts = [text[at : at + 7] for at in range(0, 700, 7)] + [text[700:]]

    async def run() -> None:
        async with scripted(SSE, *map(chunk, cuts), END) as engine, gateway([engine.url]) as running:
            status, headers, got = await ask(running.url)
            assert (status, got) == (200, text)
            assert headers["content-type"] == "text/event-stream"
            assert headers["x-headway-replica"] == "r0"
            assert headers["x-headway-policy"] == "round-robin"
            assert headers["x-headway-reason"]

    asyncio.run(run())


def test_the_journal_has_the_engines_counts_and_the_time_of_the_first_token(tmp_path: Any) -> None:
    path = tmp_path / "journal.jsonl"
    script = (SSE + chunk(ROLE), 0.2, chunk(event("a")), 0.05, chunk(event("b") + USAGE + DONE) + END)

    async def run() -> None:
        async with scripted(*script) as engine, gateway([engine.url], journal={"path": str(path)}) as running:
            await ask(running.url)

    asyncio.run(run())
    (record,) = [each for each in read_journal(path).records if isinstance(each, RequestRecord)]
    assert (record.replica, record.status, record.end) == ("r0", 200, "done")
    assert (record.output_tokens, record.cached_tokens, record.attempts) == (5, 3, 1)
    assert record.ttft_s is not None
    assert record.ttft_s >= 0.2  # the role alone is no token
    assert record.e2e_s >= record.ttft_s + 0.05


def test_tokens_are_counted_by_events_where_the_engine_counts_none(tmp_path: Any) -> None:
    path = tmp_path / "journal.jsonl"
    script = (SSE + chunk(ROLE + event("a")), *[chunk(event("b"))] * 40, chunk(DONE) + END)

    async def run() -> None:
        async with scripted(*script) as engine, gateway([engine.url], journal={"path": str(path)}) as running:
            await ask(running.url)

    asyncio.run(run())
    (record,) = [each for each in read_journal(path).records if isinstance(each, RequestRecord)]
    assert record.output_tokens == 41


def test_an_answer_that_is_no_stream_comes_whole_and_teaches_no_first_token(tmp_path: Any) -> None:
    path = tmp_path / "journal.jsonl"
    answer = b'{"choices":[{"message":{"content":"\\"usage\\": {}"}}],'
    answer += b'"usage":{"prompt_tokens":4,"completion_tokens":2}}'

    async def run() -> None:
        async with (
            scripted(whole(answer, headers="X-Own: 1\r\nKeep-Alive: 5\r\n")) as engine,
            gateway([engine.url], journal={"path": str(path)}) as running,
        ):
            status, headers, got = await ask(running.url, stream=False)
            assert (status, got) == (200, answer)
            assert headers["x-own"] == "1"
            assert "keep-alive" not in headers

    asyncio.run(run())
    (record,) = [each for each in read_journal(path).records if isinstance(each, RequestRecord)]
    assert (record.ttft_s, record.output_tokens) == (None, 2)


def test_a_long_answer_that_is_no_stream_comes_whole() -> None:
    answer = b'{"data":[' + b"0.125," * 500_000 + b'0],"usage":{"prompt_tokens":4}}'

    async def run() -> None:
        async with scripted(whole(answer)) as engine, gateway([engine.url]) as running:
            status, headers, got = await ask(running.url, stream=False)
            assert status == 200
            assert got == answer
            assert headers["content-length"] == str(len(answer))

    asyncio.run(run())


def test_an_engines_own_error_is_passed_on_as_it_is() -> None:
    answer = b'{"error":{"message":"max_tokens is too large","code":400}}'

    async def run() -> None:
        async with scripted(whole(answer, status="400 Bad Request")) as engine, gateway([engine.url]) as running:
            status, headers, got = await ask(running.url)
            assert (status, got, headers["x-headway-replica"]) == (400, answer, "r0")
            assert len(engine.requests) == 1

    asyncio.run(run())


BEFORE: dict[str, tuple[Step, ...]] = {
    "reset at once": (RESET,),
    "reset after the head": (SSE, RESET),
    "ends after the head": (SSE + END,),
    "half an event": (SSE + chunk(b'data: {"choi'), RESET),
    "says 503": (whole(b"{}", status="503 Unavailable"),),
    "says 502": (whole(b"{}", status="502 Bad Gateway"),),
    "says 429": (whole(b"{}", status="429 Too Many"),),
    "says nothing": (HOLD,),
    "says nothing after the head": (SSE, HOLD),
    "is no HTTP": (b"\x00\x01garbage\r\n\r\n", HOLD),
}


@pytest.mark.parametrize("script", BEFORE.values(), ids=BEFORE.keys())
def test_what_fails_before_the_first_byte_is_done_by_another_replica(script: tuple[Step, ...]) -> None:
    async def run() -> None:
        async with (
            scripted(*script) as bad,
            scripted(*GOOD) as good,
            gateway([bad.url, good.url], **FAST) as running,
        ):
            status, headers, got = await ask(running.url)
            assert (status, got) == (200, ROLE + event("a") + event("b") + DONE)
            assert (headers["x-headway-replica"], headers["x-headway-attempts"]) == ("r1", "2")
            assert (len(bad.requests), len(good.requests)) == (1, 1)

    asyncio.run(run())


ALONE: dict[str, tuple[tuple[Step, ...], int, str]] = {
    "reset": ((RESET,), 502, "upstream_broken"),
    "says 503": ((whole(b"{}", status="503 Unavailable"),), 503, "upstream_503"),
    "says 429": ((whole(b"{}", status="429 Too Many", headers="Retry-After: 9\r\n"),), 429, "upstream_429"),
    "says nothing": ((HOLD,), 504, "upstream_timeout"),
}


@pytest.mark.parametrize(("script", "status", "code"), ALONE.values(), ids=ALONE.keys())
def test_where_there_is_no_other_replica_the_client_hears_what_failed(
    script: tuple[Step, ...], status: int, code: str
) -> None:
    async def run() -> None:
        async with scripted(*script) as bad, gateway([bad.url], **FAST) as running:
            got_status, headers, got = await ask(running.url)
            assert got_status == status
            assert json.loads(got)["error"]["code"] == code
            assert headers.get("retry-after") == ("9" if status == 429 else None)
            assert running.admission.open == {}

    asyncio.run(run())


def test_a_replica_that_refuses_connections_is_left_out() -> None:
    async def run() -> None:
        async with scripted(*GOOD) as good, scripted(*GOOD) as gone:
            replicas = [
                {"url": gone.url.replace("127.0.0.1", "127.0.0.2"), "name": "r0", "models": ["test-model"]},
                {"url": good.url, "name": "r1", "models": ["test-model"]},
            ]
            async with gateway(["", ""], pool={"replicas": replicas}) as running:
                answers = [await ask(running.url) for _ in range(2)]
                assert {headers["x-headway-replica"] for _, headers, _ in answers} == {"r1"}

    asyncio.run(run())


BROKEN: dict[str, tuple[tuple[Step, ...], bytes]] = {
    "reset": ((SSE + chunk(event("a")), RESET), event("a")),
    "reset in an event": ((SSE + chunk(event("a") + b'data: {"choi'), RESET), event("a")),
    "ends without the mark": ((SSE + chunk(event("a")) + END,), event("a")),
    "stalls": ((SSE + chunk(event("a")), HOLD), event("a")),
    "is no HTTP any more": ((SSE + chunk(event("a")), 0.05, b"zzz\r\n", HOLD), event("a")),
}


@pytest.mark.parametrize(("script", "begin"), BROKEN.values(), ids=BROKEN.keys())
def test_a_stream_that_breaks_ends_with_an_error_and_is_not_tried_again(script: tuple[Step, ...], begin: bytes) -> None:
    async def run() -> None:
        async with (
            scripted(*script) as bad,
            scripted(*GOOD) as good,
            gateway([bad.url, good.url], **FAST) as running,
        ):
            status, _, got = await ask(running.url)
            assert status == 200
            assert got.startswith(begin)
            last = got.removeprefix(begin)
            assert last.startswith(b"data: ")
            assert last.endswith(b"\n\n")
            assert json.loads(last[6:])["error"]["message"]
            assert good.requests == []
            assert running.admission.open == {}
            assert running.admission.pools[0].fleet.in_flight == 0

    asyncio.run(run())


def test_a_long_answer_that_breaks_does_not_look_whole() -> None:
    answer = whole(b"x" * 3_000_000)[:2_500_000]

    async def run() -> None:
        async with scripted(answer, RESET) as bad, gateway([bad.url]) as running:
            status, _, got = await ask(running.url, stream=False)
            assert status == 200
            assert got.endswith(b"<broken>")

    asyncio.run(run())


def test_a_client_that_goes_away_ends_the_engines_work() -> None:
    async def run() -> None:
        async with scripted(SSE + chunk(event("a")), HOLD) as engine, gateway([engine.url]) as running:
            async with aiohttp.ClientSession() as session:
                answer = await session.post(running.url + PATH, json=body())
                await answer.content.readany()
                assert engine.left == 0
                answer.close()
                await engine.was_left()
            assert running.admission.open == {}

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_before_the_first_byte_ends_the_engines_work(stream: bool) -> None:
    async def run() -> None:
        async with scripted(HOLD) as engine, gateway([engine.url]) as running:
            async with aiohttp.ClientSession() as session:
                asking = asyncio.create_task(session.post(running.url + PATH, json=body(stream=stream)))
                while not engine.requests:
                    await asyncio.sleep(0.01)
                asking.cancel()
                await engine.was_left()
            while running.admission.open:
                await asyncio.sleep(0.01)
            assert running.admission.pools[0].fleet.in_flight == 0

    asyncio.run(run())


def test_the_engine_model_frees_what_a_client_left() -> None:
    async def run() -> None:
        async with (
            engines(1, output_tokens=100_000, step_s=0.005) as (engine,),
            gateway([engine.url]) as running,
            aiohttp.ClientSession() as session,
        ):
            answer = await session.post(running.url + PATH, json=body())
            await answer.content.readany()
            assert engine.open == 1
            answer.close()
            async with asyncio.timeout(5):
                while engine.open:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_client_that_does_not_read_holds_the_engine_back_and_is_dropped() -> None:
    flood = [chunk(event("x" * 60_000))] * 2000

    async def run() -> None:
        async with scripted(SSE, *flood, chunk(DONE) + END) as engine, gateway([engine.url], **FAST) as running:
            host, port = running.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            text = json.dumps(body()).encode()
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
            writer.write(head.encode() + text)
            await reader.read(1)
            await engine.was_left()
            assert engine.sent_bytes < 60_000_000  # half of what it has to say: the rest was held back
            writer.close()
            assert running.admission.open == {}

    asyncio.run(run())


def test_nothing_is_left_of_a_hundred_clients_that_went_away_at_any_moment() -> None:
    async def run() -> None:
        script = (0.01, SSE, 0.01, chunk(ROLE), 0.01, chunk(event("a")), 0.01, chunk(event("b")), HOLD)
        async with scripted(*script) as engine, gateway([engine.url]) as running:
            tasks = len(asyncio.all_tasks())

            async def leave_after(delay_s: float) -> None:
                asking = asyncio.create_task(ask(running.url))
                await asyncio.sleep(delay_s)
                asking.cancel()
                await asyncio.wait([asking])

            await asyncio.gather(*[leave_after(number / 1000) for number in range(100)])
            pool = running.admission.pools[0]
            async with asyncio.timeout(10):
                while running.admission.open_requests or len(asyncio.all_tasks()) > tasks:
                    await asyncio.sleep(0.01)
            assert (pool.fleet.in_flight, pool.router.in_flight) == (0, 0)
            assert pool.open_requests() == {}
            assert engine.left == len(engine.requests)

    asyncio.run(run())
