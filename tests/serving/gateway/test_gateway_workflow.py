"""A call's workflow, named in every way that needs no change of an agent framework's code."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from headway.decide.journal import RequestRecord
from headway.decide.journal_file import read_journal
from headway.serving.gateway.workflow import with_run
from headway.serving.workflows.record import from_journal
from tests.fakes.gateway import gateway
from tests.fakes.scripted_engine import scripted, whole

CHAT = "/v1/chat/completions"
BODY = '{"model":"test-model","messages":[{"role":"user","content":"hi"}]}'
ANSWER = whole(b'{"usage":{"prompt_tokens":777,"completion_tokens":2}}')
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
KEYS = [
    {"name": "plain", "sha256": sha256(b"k-plain").hexdigest()},
    {"name": "rag", "sha256": sha256(b"k-rag").hexdigest(), "workflow": "rag"},
]

CALLS: list[tuple[str, str, dict[str, str], str]] = [
    ("nothing", CHAT, {}, ""),
    ("header", CHAT, {"x-headway-workflow": "beam/1"}, "beam/1"),
    ("path", "/workflow/beam/2" + CHAT, {}, "beam/2"),
    ("path in escapes", "/workflow/beam%20search/a%2Fb" + CHAT + "?x=%2F", {}, "beam search/a/b"),
    ("a kind with a slash", "/workflow/a%2Fb/1" + CHAT, {}, "a%2Fb/1"),
    ("a kind with a slash in a key", CHAT, {"Authorization": "Bearer k-plain/workflow/a%2fb/c%2F1"}, "a%2Fb/c/1"),
    ("a kind with a slash in baggage", CHAT, {"baggage": "headway.workflow=a%2Fb/2"}, "a%2Fb/2"),
    ("path whose run is v1", "/workflow/beam/v1" + CHAT, {}, "beam/v1"),
    ("kind in the path", "/workflow/beam" + CHAT, {}, "beam"),
    ("kind in the path, and a trace", "/workflow/beam" + CHAT, {"traceparent": TRACEPARENT}, f"beam/{TRACE}"),
    ("an engine's own path", "/workflow/beam/3/tokenize", {}, "beam/3"),
    ("key", CHAT, {"Authorization": "Bearer k-plain/workflow/beam/4"}, "beam/4"),
    ("baggage", CHAT, {"baggage": "user=7, headway.workflow = beam%2F5;p=1"}, "beam/5"),
    ("the key's own", CHAT, {"Authorization": "Bearer k-rag"}, "rag"),
    ("the key's own, and a trace", CHAT, {"Authorization": "Bearer k-rag", "traceparent": TRACEPARENT}, f"rag/{TRACE}"),
    ("header before path", "/workflow/beam/6" + CHAT, {"x-headway-workflow": "beam/7"}, "beam/7"),
    (
        "path before key before baggage",
        "/workflow/beam/8" + CHAT,
        {"Authorization": "Bearer k-rag/workflow/beam/9", "baggage": "headway.workflow=beam/10"},
        "beam/8",
    ),
    (
        "key before baggage",
        CHAT,
        {"Authorization": "Bearer k-rag/workflow/beam/11", "baggage": "headway.workflow=beam/12"},
        "beam/11",
    ),
]


def test_the_journal_has_the_workflow_however_it_is_named_and_the_engine_sees_a_plain_call(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway(
                [engine.url],
                keys=KEYS,
                journal={"path": str(path), "prefix_blocks": True},
                pool={"authorization": "forward"},
            ) as running,
            aiohttp.ClientSession() as session,
        ):
            for number, (name, where, headers, _) in enumerate(CALLS):
                sent = {"Authorization": "Bearer k-plain", "Content-Type": "application/json", **headers}
                sent["x-request-id"] = str(number)
                url = URL(running.url + where, encoded=True)
                async with session.post(url, data=BODY, headers=sent) as answer:
                    assert answer.status == 200, (name, await answer.text())
                head = engine.requests[-1][0].decode()
                assert head.startswith(f"POST {where[where.find('/v1/chat') if '/v1/chat' in where else -9 :]} "), name
                assert "x-headway-workflow" not in head.lower(), name
                key = sent["Authorization"].partition("/workflow/")[0]
                assert f"Authorization: {key}\r\n" in head, name

    asyncio.run(run())
    records = [r for r in read_journal(path).records if isinstance(r, RequestRecord)]
    assert {(r.input_tokens, r.output_tokens) for r in records} == {(777, 2)}  # as the engine counted them
    found = {r.request: r.workflow for r in records}
    calls = from_journal(records)
    assert len(calls) == sum("/" in workflow for workflow in found.values())
    assert all(len(call.blocks) * call.block_tokens >= call.input_tokens for call in calls)
    assert {name: found[str(n)] for n, (name, *_) in enumerate(CALLS)} == {name: w for name, _, _, w in CALLS}


@pytest.mark.parametrize(
    ("where", "headers"),
    [
        ("/workflow/a%0Ab/1", {}),
        ("/workflow/a/1%00", {}),
        ("", {"baggage": "headway.workflow=a%2F%E2%80%A8"}),
        ("", {"Authorization": "Bearer k/workflow/a/%1b"}),
        ("/workflow/a/" + 199 * "1", {}),
        ("", {"x-headway-workflow": "a/" + 199 * "1"}),
    ],
)
def test_a_name_that_no_journal_should_hold_is_refused(where: str, headers: dict[str, str]) -> None:
    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway([engine.url]) as running,
            aiohttp.ClientSession() as session,
        ):
            url = URL(running.url + where + CHAT, encoded=True)
            async with session.post(url, data=BODY, headers={"Content-Type": "application/json", **headers}) as answer:
                assert answer.status == 400
                assert "a workflow's name has" in (await answer.json())["error"]["message"]
            assert engine.requests == []
            longest = URL(running.url + "/workflow/a/" + 198 * "1" + CHAT, encoded=True)
            async with session.post(longest, data=BODY, headers={"Content-Type": "application/json"}) as answer:
                assert answer.status == 200

    asyncio.run(run())


def test_a_path_that_names_no_workflow_is_no_path_and_a_header_that_is_no_text_is_refused() -> None:
    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway([engine.url]) as running,
            aiohttp.ClientSession() as session,
        ):
            for path in ("/workflow/", "/workflow/beam", "/workflow//3" + CHAT, "/workflow/a/b/c" + CHAT):
                async with session.post(running.url + path, data=BODY) as answer:
                    assert answer.status == 404, path
            reader, writer = await asyncio.open_connection(URL(running.url).host, URL(running.url).port)
            head = f"POST /workflow/a/b{CHAT} HTTP/1.1\r\nHost: x\r\nX-Odd: ".encode() + b"\xff\r\n"
            writer.write(head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY))
            writer.write(BODY.encode())
            assert (await asyncio.wait_for(reader.readline(), 5.0)).startswith(b"HTTP/1.1 400 ")
            writer.close()
            await writer.wait_closed()
            async with session.get(running.url + "/workflow/a/b/v1/models") as answer:
                assert [each["id"] for each in (await answer.json())["data"]] == ["test-model"]
            assert engine.requests == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("workflow", "traceparent", "wanted"),
    [
        ("", TRACEPARENT, ""),
        ("beam/1", TRACEPARENT, "beam/1"),
        ("beam", None, "beam"),
        ("beam", "nonsense", "beam"),
        ("beam", TRACEPARENT, f"beam/{TRACE}"),
    ],
)
def test_a_trace_is_the_run_of_a_kind_without_one(workflow: str, traceparent: str | None, wanted: str) -> None:
    assert with_run(workflow, traceparent) == wanted
