"""What the gateway says of its journal's file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp

from headway.decide.journal_file import read_journal
from tests.fakes.gateway import gateway
from tests.fakes.scripted_engine import END, SSE, chunk, event, scripted

BODY: dict[str, Any] = {"model": "test-model", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


def test_a_full_journal_is_said_once_and_works_again_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "gateway.jsonl"
    told: list[str] = []

    async def run() -> None:
        async with (
            scripted(SSE + chunk(event("a") + b"data: [DONE]\n\n") + END) as engine,
            gateway([engine.url], told=told, journal={"path": path, "max_bytes": 4096}) as running,
            aiohttp.ClientSession() as session,
        ):

            async def ask(times: int) -> None:
                for _ in range(times):
                    async with session.post(running.url + "/v1/chat/completions", json=BODY) as answer:
                        await answer.read()

            await ask(20)
            os.replace(path, tmp_path / "gateway.jsonl.1")
            await asyncio.sleep(1.1)
            await ask(1)

    asyncio.run(run())
    said = [line for line in told if "journal" in line]
    assert len(said) == 2
    assert said[0].endswith("drops records: the file reached its limit of 4096 bytes")
    assert "is written again" in said[1]
    assert [record.kind for record in read_journal(path).records][:2] == ["dropped", "request"]
