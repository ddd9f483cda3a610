"""The learned policy in a gateway: it learns from real streams, beside the event loop, and remembers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from headway.decide.journal import RequestRecord, ServingRecord
from headway.decide.journal_file import read_journal
from tests.fakes.engine import engines
from tests.fakes.gateway import gateway

POOL = {"policy": "learned", "options": {"least_samples": 100, "retrain_every": 100, "control_share": 0.0}}
AT_ONCE = 4


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> dict[str, str]:
    body = {
        "model": "test-model",
        "stream": True,
        "max_tokens": 2,
        "messages": [{"role": "user", "content": f"question {number} " * (5 + number % 40)}],
    }
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200
        await answer.read()
        return {name.lower(): value for name, value in answer.headers.items()}


def test_it_learns_from_the_requests_that_it_routes_and_remembers(tmp_path: Path) -> None:
    path, memory = tmp_path / "journal.jsonl", tmp_path / "memory.npz"
    pool: dict[str, Any] = {**POOL, "memory": str(memory)}

    async def run() -> None:
        told: list[str] = []
        async with engines(2) as (one, two), aiohttp.ClientSession() as session:
            urls = [one.url, two.url]
            async with gateway(urls, pool=pool, told=told, journal={"path": str(path)}) as running:
                number = 0
                async with asyncio.timeout(60):
                    while not memory.exists():
                        answers = await asyncio.gather(*[ask(session, running.url, number + i) for i in range(AT_ONCE)])
                        number += AT_ONCE
                        assert {each["x-headway-replica"] for each in answers} <= {"r0", "r1"}
            async with gateway(urls, pool=pool, told=told) as again:
                await ask(session, again.url, 0)
                assert not [line for line in told if "starts without" in line]

    asyncio.run(run())
    records = read_journal(path).records
    requests = [each for each in records if isinstance(each, RequestRecord)]
    assert {each.by for each in requests} >= {"lmetric"}  # before there was a model
    assert all(each.ttft_s is not None for each in requests)
    assert not [each for each in records if isinstance(each, ServingRecord) and "failed" in each.what]
