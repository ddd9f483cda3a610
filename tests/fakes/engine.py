"""Engines on free ports of this process, for tests of what stands in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from headway.serving.engine.types import EngineProfile
from headway.serving.enginehttp.answering import ServingSettings
from headway.serving.enginehttp.server import Engine

QUICK = EngineProfile(
    device="test",
    step_s=1e-3,
    token_s=1e-6,
    attention_s=0.0,
    weights_s=0.0,
    context_s=0.0,
    step_tokens=2048,
    most_running=64,
    cache_tokens=65_536,
    block_tokens=16,
)
"""1 ms a step: a test waits for what it asks, not for an accelerator."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that reached an engine.

    Attributes:
        path: of the API.
        headers: as they came.
        body: parsed.
    """

    path: str
    headers: dict[str, str]
    body: Any


@dataclass(slots=True)
class Running:
    """An engine that runs.

    Attributes:
        engine: itself: `url`, `port`, `set_faults(stall=True, ...)`, `kill()`, `answering.measures`.
        calls: what has reached it, in order.
    """

    engine: Engine
    calls: list[Call] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it answers, without a path."""
        return self.engine.url

    @property
    def open(self) -> int:
        """Requests that have neither ended nor been cancelled (count)."""
        return self.engine.answering.open


@asynccontextmanager
async def engines(
    count: int = 1, *, profile: EngineProfile = QUICK, model: str = "test-model", output_tokens: int = 8, **changes: Any
) -> AsyncIterator[list[Running]]:
    """`count` engines that serve `model`; killed in the end.

    Args:
        profile: of each; `changes` replaces some of its values, e.g. `step_s=0.02`.
        output_tokens: of an answer without `max_tokens`.
    """
    settings = ServingSettings(model=model, output_tokens_mean=output_tokens, output_tokens_sd=0.0)
    async with AsyncExitStack() as stack:
        running = []
        for _ in range(count):
            calls: list[Call] = []
            engine = Engine(replace(profile, **changes), settings, port=0, faults_path=True, on_request=_keeper(calls))
            running.append(Running(await stack.enter_async_context(engine), calls))
        yield running


def _keeper(calls: list[Call]) -> Callable[[web.Request, Any], None]:
    return lambda request, body: calls.append(Call(request.path, dict(request.headers), body))
