"""What the gateway turns away: the table of what clients get for what they do wrong, and its limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from headway.decide.journal import RequestRecord, ServingRecord
from headway.decide.journal_file import read_journal
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Outcome, Request
from tests.fakes.engine import engines
from tests.fakes.gateway import gateway
from tests.fakes.scripted_engine import HOLD, SSE, chunk, event, scripted, whole


class Slow:
    """A policy that predicts 2.5 s, always."""

    name = "slow"

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The first one."""
        return Choice(candidates[0].name, "a test", "slow", predicted_ttft_s=2.5)

    def observe(self, outcome: Outcome, now_s: float) -> None:
        """Learns nothing."""

    def first_token(self, request_id: str, ttft_s: float, now_s: float) -> None:
        """Learns nothing."""

    def records(self) -> list[ServingRecord]:
        """Says nothing."""
        return []


CHAT = "/v1/chat/completions"
GOOD = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = whole(b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}')


def chat(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


MALFORMED: dict[str, tuple[str, str | bytes, int, str | None]] = {
    "no JSON": (CHAT, "{", 400, None),
    "no body": (CHAT, "", 400, None),
    "no text": (CHAT, b"\xff\xfe{}", 400, None),
    "a list": (CHAT, "[]", 400, None),
    "a number": (CHAT, "1", 400, None),
    "too deep": (CHAT, '{"model":' + "[" * 100_000, 400, None),
    "a number too long": (CHAT, '{"model":"test-model","seed":' + "9" * 10_000 + "}", 400, None),
    "no model": (CHAT, json.dumps({"messages": GOOD["messages"]}), 400, "model"),
    "an empty model": (CHAT, chat(model=""), 400, "model"),
    "a model that is no text": (CHAT, chat(model=7), 400, "model"),
    "an unknown model": (CHAT, chat(model="nope"), 404, "model"),
    "no messages": (CHAT, '{"model":"test-model"}', 400, "messages"),
    "messages that are no list": (CHAT, chat(messages="hi"), 400, "messages"),
    "empty messages": (CHAT, chat(messages=[]), 400, "messages"),
    "a message that is no object": (CHAT, chat(messages=["hi"]), 400, "messages[0]"),
    "a message without a role": (CHAT, chat(messages=[{"content": "hi"}]), 400, "messages[0]"),
    "a part that is no object": (
        CHAT,
        chat(messages=[{"role": "user", "content": [1]}]),
        400,
        "messages[0].content[0]",
    ),
    "content of a strange kind": (CHAT, chat(messages=[{"role": "user", "content": 1}]), 400, "messages[0].content"),
    "a stream that is no boolean": (CHAT, chat(stream="yes"), 400, "stream"),
    "max_tokens that is no number": (CHAT, chat(max_tokens="9"), 400, "max_tokens"),
    "a prompt of a strange kind": ("/v1/completions", '{"model":"test-model","prompt":{}}', 400, "prompt"),
    "an empty prompt list": ("/v1/completions", '{"model":"test-model","prompt":[]}', 400, "prompt"),
    "a prompt of ids below 0": ("/v1/completions", '{"model":"test-model","prompt":[-1]}', 400, "prompt"),
    "a mixed prompt": ("/v1/completions", '{"model":"test-model","prompt":["a",1]}', 400, "prompt"),
    "no input": ("/v1/embeddings", '{"model":"test-model"}', 400, "input"),
    "no documents": ("/v1/rerank", '{"model":"test-model","query":"a"}', 400, "documents"),
    "a path outside": ("/v2/other", "{}", 404, None),
    "a path that climbs": ("/v1/../metrics", "{}", 404, None),
    "a path that climbs in disguise": ("/v1/x/%2e%2e/%2e%2e/metrics", "{}", 404, None),
}


async def post(session: aiohttp.ClientSession, url: str, data: str | bytes, **headers: str) -> tuple[int, Any, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("Content-Type", "application/json")
    async with session.post(URL(url, encoded=True), data=data, headers=named) as answer:
        text = await answer.read()
        return answer.status, answer.headers, json.loads(text) if text.startswith(b"{") else text


def test_every_malformed_request_is_told_what_is_wrong_and_reaches_no_engine() -> None:
    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway([engine.url]) as running,
            aiohttp.ClientSession() as session,
        ):
            for name, (path, data, wanted, param) in MALFORMED.items():
                status, headers, answer = await post(session, running.url + path, data)
                assert status == wanted, (name, answer)
                error = answer["error"]
                assert error["param"] == param, (name, answer)
                assert error["message"], name
                assert error["type"] in ("invalid_request_error", "not_found_error"), name
                assert headers["Content-Type"].startswith("application/json"), name
            assert engine.requests == []
            assert running.admission.open == {}
            status, _, _ = await post(session, running.url + CHAT, chat())
            assert status == 200  # after all that

    asyncio.run(run())


def test_an_unknown_model_is_told_the_known_ones() -> None:
    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url]) as running, aiohttp.ClientSession() as session:
            _, _, answer = await post(session, running.url + CHAT, chat(model="nope"))
            assert "test-model" in answer["error"]["message"]
            assert answer["error"]["code"] == "model_not_found"

    asyncio.run(run())


@pytest.mark.parametrize(("name", "text"), [("x-slo-ttft-ms", "soon"), ("x-slo-tpot-ms", "-1")])
def test_a_goal_that_is_no_time_is_an_error(name: str, text: str) -> None:
    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url]) as running, aiohttp.ClientSession() as session:
            status, _, answer = await post(session, running.url + CHAT, chat(), **{name: text})
            assert (status, answer["error"]["param"]) == (400, name)

    asyncio.run(run())


def test_methods_that_a_path_does_not_have() -> None:
    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url]) as running, aiohttp.ClientSession() as session:
            for method, path, allowed in (
                ("GET", CHAT, "POST"),
                ("DELETE", "/v1/models", "GET, HEAD"),
                ("POST", "/health", "GET, HEAD"),
                ("PROPFIND", "/v1/other", "DELETE, GET, PATCH, POST, PUT"),
            ):
                async with session.request(method, running.url + path) as answer:
                    assert (answer.status, answer.headers["Allow"]) == (405, allowed)

    asyncio.run(run())


def test_a_body_over_the_limit_is_refused_however_it_comes() -> None:
    async def pieces() -> Any:
        for _ in range(40):
            yield b" " * 1000

    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway([engine.url], limits={"body_bytes": 10_000}) as running,
            aiohttp.ClientSession() as session,
        ):
            status, _, answer = await post(session, running.url + CHAT, chat(user="x" * 20_000))
            assert (status, answer["error"]["code"]) == (413, "request_too_large")
            async with session.post(running.url + CHAT, data=pieces()) as chunked:
                assert chunked.status == 413
            assert engine.requests == []
            status, _, _ = await post(session, running.url + CHAT, chat(user="x" * 9_000))
            assert status == 200

    asyncio.run(run())


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url], timeouts={"body_s": 0.1}) as running:
            host, port = running.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
            async with asyncio.timeout(5):
                assert (await reader.readline()).split()[1] == b"408"
            writer.close()

    asyncio.run(run())


def test_keys() -> None:
    keys = [
        {"name": "ann", "env": "ANN_KEY"},
        {"name": "bob", "sha256": sha256(b"bobs").hexdigest(), "requests_per_minute": 2},
    ]

    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway([engine.url], keys=keys, environment={"ANN_KEY": "anns\n"}) as running,
            aiohttp.ClientSession() as session,
        ):
            url = running.url + CHAT
            for headers, wanted in (
                ({}, 401),
                ({"Authorization": "Bearer "}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({"Authorization": "Basic anns"}, 401),
                ({"Authorization": "Bearer anns"}, 200),
                ({"Authorization": "bearer bobs"}, 200),
                ({"Authorization": "Bearer bobs"}, 200),
                ({"Authorization": "Bearer bobs"}, 429),
                ({"Authorization": "Bearer anns"}, 200),
            ):
                status, got, _ = await post(session, url, chat(), **headers)
                assert status == wanted
                assert ("Retry-After" in got) == (wanted == 429)
            assert all(b"authorization" not in head.lower() for head, _ in engine.requests)
            async with session.get(running.url + "/v1/models") as models:
                assert models.status == 401
            async with session.get(running.url + "/health") as health:
                assert health.status == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("policy", "sent"), [("forward", b"authorization: bearer mine"), ("replace", b"authorization: bearer theirs")]
)
def test_what_replicas_get_as_authorization(policy: str, sent: bytes) -> None:
    pool = {"authorization": policy, **({"engine_key_env": "ENGINE"} if policy == "replace" else {})}

    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway([engine.url], pool=pool, environment={"ENGINE": "theirs"}) as running,
            aiohttp.ClientSession() as session,
        ):
            await post(session, running.url + CHAT, chat(), Authorization="Bearer mine")
            assert sent in engine.requests[0][0].lower()

    asyncio.run(run())


def test_headers_that_are_passed_on_and_those_that_are_not() -> None:
    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url]) as running, aiohttp.ClientSession() as session:
            _, got, _ = await post(
                session,
                running.url + CHAT + "?a=%20b",
                chat(),
                X_Own="1",
                X_Hop="2",
                Connection="x-hop, keep-alive",
                X_Request_Id="mine-7",
                X_Forwarded_For="10.0.0.9",
                Cookie="secret=1",
                Host="elsewhere",
            )
            (head, body) = engine.requests[0]
            lines = {line.partition(b": ")[0].lower(): line.partition(b": ")[2] for line in head.split(b"\r\n")}
            assert head.startswith(b"POST /v1/chat/completions?a=%20b HTTP/1.1\r\n")
            assert lines[b"x-own"] == b"1"
            assert lines[b"x-request-id"] == b"mine-7"
            assert lines[b"x-forwarded-for"] == b"10.0.0.9, 127.0.0.1"
            assert lines[b"host"] == engine.url.removeprefix("http://").encode()
            assert not {b"x-hop", b"cookie", b"authorization"} & lines.keys()
            assert got["x-request-id"] == "mine-7"
            assert json.loads(body) == json.loads(chat())

    asyncio.run(run())


def test_open_requests_of_a_key_a_replica_and_the_gateway_are_bounded() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"per_key": {"concurrent": 1}}, "concurrent_requests"),
        ({"requests_per_replica": 1}, "queue_full"),
        ({"open_requests": 1}, "overloaded"),
    )

    async def run() -> None:
        for limits, code in cases:
            async with (
                scripted(SSE + chunk(event("a")), HOLD) as engine,
                gateway([engine.url], limits=limits) as running,
                aiohttp.ClientSession() as session,
            ):
                first = await session.post(running.url + CHAT, data=chat(stream=True))
                assert first.status == 200
                status, headers, answer = await post(session, running.url + CHAT, chat())
                assert (status, answer["error"]["code"]) == (429, code)
                assert int(headers["Retry-After"]) >= 1
                first.close()
                await engine.was_left()
                while running.admission.open:
                    await asyncio.sleep(0.01)
                second = await session.post(running.url + CHAT, data=chat(stream=True))
                assert second.status == 200
                second.close()

    asyncio.run(run())


def test_tokens_per_minute_count_prompt_and_answer() -> None:
    answer = whole(b'{"usage":{"prompt_tokens":10,"completion_tokens":500}}')

    async def run() -> None:
        async with (
            scripted(answer) as engine,
            gateway([engine.url], limits={"per_key": {"tokens_per_minute": 100}}) as running,
            aiohttp.ClientSession() as session,
        ):
            status, _, _ = await post(session, running.url + CHAT, chat())
            assert status == 200
            status, headers, _ = await post(session, running.url + CHAT, chat())
            assert status == 429
            assert int(headers["Retry-After"]) > 200  # 410 below zero, at 100 a minute

    asyncio.run(run())


def test_no_replica_is_503_and_in_the_journal(tmp_path: Any) -> None:
    path = tmp_path / "journal.jsonl"

    async def run() -> None:
        pool = {"models": ["test-model"], "replicas": [{"url": "http://127.0.0.1:9", "models": ["other"]}]}
        async with (
            gateway([], pool=pool, journal={"path": str(path)}) as running,
            aiohttp.ClientSession() as session,
        ):
            async with session.get(running.url + "/ready") as ready:
                assert ready.status in (200, 503)
            status, headers, answer = await post(session, running.url + CHAT, chat())
            assert (status, answer["error"]["code"]) == (503, "no_replica")
            assert int(headers["Retry-After"]) >= 1

    asyncio.run(run())
    (record,) = [each for each in read_journal(path).records if isinstance(each, RequestRecord)]
    assert (record.end, record.status, record.attempts) == ("refused", 503, 0)


def test_names_that_are_no_utf_8_do_not_cost_a_request_its_record(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url], journal={"path": str(path)}) as running:
            host, port = running.url.removeprefix("http://").split(":")
            for user, headers in (
                ("\ud800", b""),
                ("", b"x-session-id: caf\xe9\r\n"),
                ("", b"x-headway-workflow: caf\xe9/1\r\n"),
            ):
                body = chat(user=user, max_tokens=8.0).encode()
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode() + headers)
                writer.write(b"\r\n" + body)
                async with asyncio.timeout(5):
                    assert (await reader.readline()).split()[1] == b"200"
                writer.close()
            assert running.admission.pools[0].journal_errors == 0

    asyncio.run(run())
    records = [each for each in read_journal(path).records if isinstance(each, RequestRecord)]
    assert [(each.session, each.workflow) for each in records] == [("?", ""), ("caf?", ""), ("", "caf?/1")]


def test_a_policy_by_header_where_it_is_allowed() -> None:
    async def run() -> None:
        async with (
            engines(2) as (one, two),
            gateway([one.url, two.url], pool={"strategies": ["least-request"]}) as running,
            aiohttp.ClientSession() as session,
        ):
            for strategy, wanted in (("least_request", "least-requests"), ("round-robin", "round-robin")):
                status, headers, _ = await post(session, running.url + CHAT, chat(), routing_strategy=strategy)
                assert (status, headers["x-headway-policy"]) == (200, wanted)
            for strategy in ("random", "nonsense"):
                status, _, answer = await post(session, running.url + CHAT, chat(), routing_strategy=strategy)
                assert (status, answer["error"]["param"]) == (400, "routing-strategy")
            assert all("routing-strategy" not in call.headers for call in one.calls + two.calls)

    asyncio.run(run())


def test_other_paths_of_engines_are_passed_through() -> None:
    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url]) as running, aiohttp.ClientSession() as session:
            form = aiohttp.FormData({"model": "test-model", "language": "en"})
            form.add_field("file", b"\x00\x01" * 100, filename="a.wav")
            async with session.post(running.url + "/v1/audio/transcriptions", data=form) as answer:
                assert answer.status == 200
            for path, data in (
                ("/tokenize", '{"prompt":"hi"}'),
                ("/v1/responses", '{"model":"test-model","input":"hi"}'),
                ("/v1/rerank", '{"model":"test-model","query":"a","documents":["b",{"text":"c"}]}'),
            ):
                status, _, _ = await post(session, running.url + path, data)
                assert status == 200, path
            async with session.get(running.url + "/v1/files") as files:
                assert files.status == 200
            assert [head.split()[1] for head, _ in engine.requests] == [
                b"/v1/audio/transcriptions",
                b"/tokenize",
                b"/v1/responses",
                b"/v1/rerank",
                b"/v1/files",
            ]
            form2 = aiohttp.FormData({"model": "nope", "x": "y"}, default_to_multipart=True)
            async with session.post(running.url + "/v1/audio/transcriptions", data=form2) as answer:
                assert answer.status == 404

    asyncio.run(run())


def test_pages_of_the_gateway_itself() -> None:
    async def run() -> None:
        async with (
            engines(2) as (one, two),
            gateway(
                [one.url, two.url],
                admin_token_env="ADMIN",
                environment={"ADMIN": "secret"},
                metrics={"port": 0},
            ) as running,
            aiohttp.ClientSession() as session,
        ):
            async with session.get(running.url + "/ready") as ready:
                assert (ready.status, await ready.json()) == (200, {"status": "ready", "replicas": 2})
            async with session.get(running.url + "/v1/models") as models:
                assert [each["id"] for each in (await models.json())["data"]] == ["test-model"]
            async with session.get(running.url + "/v1/models/test-model") as model:
                assert (await model.json())["id"] == "test-model"
            async with session.get(running.url + "/v1/models/nope") as model:
                assert model.status == 404
            for token, wanted in (("", 401), ("Bearer wrong", 401), ("Bearer secret", 200)):
                async with session.get(running.url + "/admin/state", headers={"Authorization": token}) as state:
                    assert state.status == wanted
                    if wanted == 200:
                        pools = (await state.json())["pools"]
                        assert [replica["name"] for replica in pools[0]["replicas"]] == ["r0", "r1"]
            async with session.get(running.url + "/metrics") as metrics:
                assert metrics.status == 404
            await post(session, running.url + CHAT, chat())
            async with session.get(running.metrics_url + "/metrics") as metrics:
                page = await metrics.text()
                assert 'code="200",model="test-model",replica="r0"' in page
            async with session.get(running.metrics_url + "/v1/models") as models:
                assert models.status == 404

    asyncio.run(run())


def test_a_goal_that_would_be_missed_is_refused_at_once_where_that_is_wished(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway([engine.url], pool={"shed_hopeless": True}, journal={"path": str(path)}) as running,
            aiohttp.ClientSession() as session,
        ):
            running.admission.pools[0].router.policy = Slow()
            status, headers, answer = await post(session, running.url + CHAT, chat(), x_slo_ttft_ms="1000")
            assert (status, answer["error"]["code"], headers["Retry-After"]) == (429, "slo_hopeless", "2")
            assert engine.requests == []
            assert running.admission.pools[0].fleet.in_flight == 0
            status, headers, _ = await post(session, running.url + CHAT, chat(), x_slo_ttft_ms="3000")
            assert (status, headers["x-headway-predicted-ttft-ms"]) == (200, "2500.0")

    asyncio.run(run())
    records = [each for each in read_journal(path).records if isinstance(each, RequestRecord)]
    assert [(each.end, each.status) for each in records] == [("refused", 429), ("done", 200)]


def test_a_replica_that_is_too_busy_is_not_taken_for_broken() -> None:
    busy = whole(b"{}", status="429 Too Many", headers="Retry-After: 1\r\n")

    async def run() -> None:
        async with (
            scripted(busy) as one,
            scripted(busy) as two,
            gateway([one.url, two.url], retries={"attempts": 3}) as running,
            aiohttp.ClientSession() as session,
        ):
            for _ in range(10):
                status, _, answer = await post(session, running.url + CHAT, chat())
                assert (status, answer["error"]["code"]) == (429, "upstream_429")
            assert (len(one.requests), len(two.requests)) == (10, 10)

    asyncio.run(run())


def test_a_mistake_in_a_policy_is_a_500_and_leaves_nothing_open(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Slow):
        """Chooses who isn't there."""

        def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
            """Nobody."""
            return Choice("nobody", "a test", "wrong")

    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway([engine.url], limits={"per_key": {"concurrent": 1}}) as running,
            aiohttp.ClientSession() as session,
        ):
            running.admission.pools[0].router.policy = Wrong()
            for _ in range(3):
                status, _, answer = await post(session, running.url + CHAT, chat())
                assert (status, answer["error"]["code"]) == (500, "internal_error")
            assert running.admission.open == {}
            assert running.admission.pools[0].fleet.in_flight == 0

    asyncio.run(run())
    assert "nobody" in caplog.text


def test_a_client_that_goes_away_in_its_own_request_is_no_mistake_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url]) as running:
            host, port = running.url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
            async with asyncio.timeout(5):
                while not running.admission.entering:
                    await asyncio.sleep(0.01)
                writer.close()
                while running.admission.entering:
                    await asyncio.sleep(0.01)

    asyncio.run(run())
    assert caplog.text == ""
