"""One request's state on its way through the gateway, and what the router hears of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiohttp import web

from headway.serving.gateway.incoming import Call
from headway.serving.gateway.limits import Client
from headway.serving.gateway.pools import Clock, RunningPool
from headway.serving.gateway.prompt import TokenRatio
from headway.serving.gateway.sse import Usage
from headway.serving.gateway.watch import Watch
from headway.serving.policy import Choice
from headway.serving.request import End
from headway.serving.router import Router

PROGRESS_EVERY = 16
"""Tokens between two words to the router of how long an answer has become."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One request.

    Attributes:
        http: the client's request.
        call: what is asked; its `request.id` is the exchange's name.
        client: whose key.
        pool, router: who decides where it goes.
        arrived_s: when it came, on the router's clock.
        choice: the attempt's; None before the first.
        response: what the client gets, once its head was sent.
        watch: of the attempt that runs.
        tokens: of the answer so far.
        usage: what the engine said at the end.
        first_token: whether it has come.
        traceparent: for the replica; empty: what the client sent.
        doubted: replicas that answered it with 500, where that may be the request's fault.
        counts: whether a failure speaks against the replica.
    """

    http: web.BaseRequest
    call: Call
    client: Client
    pool: RunningPool
    router: Router
    clock: Clock
    arrived_s: float
    choice: Choice | None = None
    response: web.StreamResponse | None = None
    watch: Watch | None = None
    tokens: int = 0
    usage: Usage = field(default_factory=Usage)
    first_token: bool = False
    traceparent: str = ""
    doubted: list[str] = field(default_factory=list)
    counts: bool = True
    _told: int = 0
    _over: bool = False

    @property
    def id(self) -> str:
        """The request's name."""
        return self.call.request.id

    def has_first_token(self) -> None:
        """The first token has come."""
        self.first_token = True
        if self.choice is not None:
            self.pool.doubts.answered(self.choice.replica)
        self.router.first_token(self.id, self.clock.now_s())

    def has_tokens(self, count: int) -> None:
        """So many tokens have come in all."""
        self.tokens = count
        if count - self._told >= PROGRESS_EVERY:
            self._told = count
            self.router.progress(self.id, count)

    @property
    def over(self) -> bool:
        """Whether its end was told."""
        return self._over

    def ended(self, end: End, status: int, ratios: TokenRatio, why: str = "") -> None:
        """The request is over: the router, the client's limits and the estimate of prompts' lengths hear of it.

        Args:
            end: how.
            status: what the client got.
            ratios: learn from the engine's count.
            why: what failed.
        """
        self._over = True
        usage, request = self.usage, self.call.request
        output = usage.output_tokens if usage.output_tokens is not None else self.tokens
        self.router.finished(
            request.id,
            self.clock.now_s(),
            input_tokens=usage.prompt_tokens,
            output_tokens=output,
            cached_tokens=usage.cached_tokens,
            end=end,
            status=status,
            why=why,
            counts=self.counts,
        )
        prompt_tokens = request.input_tokens if end is not End.FAILED or output else 0
        if usage.prompt_tokens is not None:
            prompt_tokens = usage.prompt_tokens
            ratios.learn(self.call.prompt, request.model, prompt_tokens)
        self.client.leave(prompt_tokens - request.input_tokens + output)

    def refused(self, status: int, reason: str) -> None:
        """It gets no answer of a replica: the router and the client's limits hear of it."""
        self._over = True
        request = self.call.request
        self.router.refused(request, self.clock.now_s(), status=status, reason=reason, arrived_s=self.arrived_s)
        self.client.leave(-request.input_tokens)

    def shed(self, status: int, reason: str) -> None:
        """It was routed, and then not sent."""
        self._over = True
        self.router.abandon(self.id, self.clock.now_s(), status=status, refused=reason)
        self.client.leave(-self.call.request.input_tokens)

    def stop(self) -> None:
        """End it now: the gateway stops."""
        if self.watch is not None:
            self.watch.stop()


async def send_last(
    response: web.StreamResponse, transport: asyncio.Transport | None, event: bytes, *, limit_s: float
) -> None:
    """The last event of a stream that broke, where the client still reads; then its connection is closed.

    Args:
        response: begun.
        transport: the client's connection; None where it is closed already.
        event: whole; empty: none, and the stream is left unfinished, which every HTTP client notices.
        limit_s: for the client to take it.
    """
    try:
        if event:
            async with asyncio.timeout(limit_s):
                await response.write(event)
                await response.write_eof()
    except (TimeoutError, ConnectionError):
        event = b""
    if transport is not None:
        if event:
            transport.close()
        else:
            transport.abort()
