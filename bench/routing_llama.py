"""Policies on a real engine, as a smoke test: `python -m bench.routing_llama`; needs `headway[llama]`.

A few llama.cpp servers with Gemma 3 270M on the CPU behind `headway gateway`, and conversations of several turns that
each send all that was said before. Whoever sends a turn to the replica that had the one before saves its prompt's
computation. Each policy gets new servers and the same conversations; a conversation's next turn comes a while after its
answer. With so few requests and such a small fleet this shows that the parts work together, not which policy is best.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.grid_script import as_script
from bench.headway_proxy import COMMAND
from bench.overhead_tables import quantile
from bench.own_process import write
from bench.proxies import free_ports
from bench.raw_client import words
from bench.routing_http import await_up, chosen, consecutive, run
from headway.bench.markdown import table
from headway.errors import HeadwayError
from headway.serving.policies import NAMES

POLICIES = ("round-robin", "prefix", "prefix-and-load", "lmetric", "learned")
OPTIONS = {"learned": {"least_samples": 50, "retrain_every": 50}}
"""A smoke test has too few requests for the defaults."""
FIRST_BYTES, TURN_BYTES, REPLY_BYTES = 1200, 160, 100
OUTPUT_TOKENS = 12
ANSWER_LIMIT_S = 120.0


@dataclass(frozen=True)
class Turn:
    """One answered turn: when it came (s from the begin), its TTFT, its prompt, how much of that was cached."""

    at_s: float
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    replica: str


@dataclass(frozen=True)
class Told:
    """One policy: its turns after each conversation's first, which nobody can have cached."""

    policy: str
    turns: list[Turn]
    by_model: int

    @property
    def cached(self) -> float:
        """Share of the prompts' tokens that were cached."""
        return sum(turn.cached_tokens for turn in self.turns) / max(1, sum(turn.prompt_tokens for turn in self.turns))


def conversation(number: int, turns: int, seed: int) -> list[list[dict[str, str]]]:
    """The messages of each of its turns. What the model says is replaced, so that all policies get the same."""
    chance = random.Random(seed * 1000 + number)
    messages: list[dict[str, str]] = []
    found = []
    for turn in range(turns):
        messages.append({"role": "user", "content": words(chance, TURN_BYTES if turn else FIRST_BYTES)})
        found.append(list(messages))
        messages.append({"role": "assistant", "content": words(chance, REPLY_BYTES)})
    return found


async def ask(
    session: aiohttp.ClientSession, url: str, messages: list[dict[str, str]], begun_s: float
) -> tuple[Turn, str]:
    """A turn, and the rule that chose its replica. HeadwayError when it is not answered."""
    body = {
        "model": "m",
        "messages": messages,
        "max_tokens": OUTPUT_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_s = time.perf_counter()
    first_s = 0.0
    usage: dict[str, object] = {}
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            raise HeadwayError(f"status {answer.status}: {(await answer.text())[:200]}")
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if not first_s and any(choice.get("delta", {}).get("content") for choice in event.get("choices", ())):
                first_s = time.perf_counter()
        rule = answer.headers.get("x-headway-policy", "")
        replica = answer.headers.get("x-headway-replica", "")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens", 0) if isinstance(details, dict) else 0
    prompt = usage.get("prompt_tokens", 0)
    assert isinstance(prompt, int)
    ttft_s = (first_s or time.perf_counter()) - sent_s
    return Turn(sent_s - begun_s, ttft_s, prompt, int(cached), replica), rule


async def converse(url: str, conversations: int, turns: int, pause_s: float, seed: int) -> tuple[list[Turn], int]:
    """All conversations at once; their turns after the first, and how many a learned model placed."""
    begun_s = time.perf_counter()
    found: list[Turn] = []
    rules: list[str] = []

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        chance = random.Random(seed * 7 + number)
        await asyncio.sleep(chance.uniform(0, conversations * pause_s))
        for turn, messages in enumerate(conversation(number, turns, seed)):
            told, rule = await ask(session, url, messages, begun_s)
            rules.append(rule)
            if turn:
                found.append(told)
            await asyncio.sleep(chance.expovariate(1 / pause_s))

    timeout = aiohttp.ClientTimeout(total=ANSWER_LIMIT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        for number in range(conversations):
            group.create_task(one(session, number))
    return found, sum(rule == "learned" for rule in rules)


def measured(policy: str, options: argparse.Namespace) -> Told:
    """One policy, with servers of its own."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ports = consecutive(options.replicas)
        argv = [COMMAND, "engine", "--llama", "--replicas", str(options.replicas), "--port", str(ports[0])]
        run(stack, "engines", [*argv, "--served-model-name", "m"], folder, 0)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for url in urls:
            await_up(f"{url}/health")
        port = free_ports(1)[0]
        pool = {"models": ["m"], "policy": policy, "options": OPTIONS.get(policy, {}), "replicas": urls}
        config = folder / "gateway.json"
        config.write_text(json.dumps({"listen": {"port": port}, "pools": [pool]}))
        run(stack, "gateway", (COMMAND, "gateway", str(config)), folder, 0)
        url = f"http://127.0.0.1:{port}"
        await_up(f"{url}/ready")
        turns, by_model = asyncio.run(converse(url, options.conversations, options.turns, options.pause, options.seed))
    return Told(policy, sorted(turns, key=lambda turn: turn.at_s), by_model)


def shown(found: Sequence[Told]) -> str:
    """As a table."""
    heads = ("policy", "mean TTFT, ms", "p50", "p99", "prompt tokens cached, %", "turns by replica", "by the model")
    rows = []
    for told in found:
        times_s = [turn.ttft_s for turn in told.turns]
        replicas = sorted({turn.replica for turn in told.turns})
        counts = " + ".join(str(sum(turn.replica == name for turn in told.turns)) for name in replicas)
        figures = (statistics.mean(times_s), quantile(times_s, 0.5), quantile(times_s, 0.99))
        cells = (f"{1e3 * figure:.0f}" for figure in figures)
        rows.append((told.policy, *cells, f"{100 * told.cached:.0f}", counts, str(told.by_model or "")))
    return table(heads, rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the turns here, as JSON")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=6, help="of each conversation")
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds from an answer to the next turn")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = []
    for policy in chosen(options.policies, NAMES, "--policies"):
        found.append(measured(policy, options))
        print(f"{policy}: {len(found[-1].turns)} turns", file=sys.stderr, flush=True)
        if options.out is not None:
            write(options.out, {"policies": found})
    print(shown(found))


if __name__ == "__main__":
    as_script("routing_llama", main)
