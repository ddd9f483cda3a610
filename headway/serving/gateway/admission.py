"""Which calls are taken on: every check before a replica is chosen. Each refusal is counted, and says what to do."""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from headway.errors import UsageError
from headway.serving.gateway.answers import AnswerError
from headway.serving.gateway.config import Config
from headway.serving.gateway.exchange import Exchange
from headway.serving.gateway.incoming import (
    CALLS,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    Call,
    Ids,
    check_path,
    parse_call,
    raw_call,
)
from headway.serving.gateway.limits import Client, KeyRing
from headway.serving.gateway.pools import Clock, RunningPool
from headway.serving.gateway.prompt import TokenRatio
from headway.serving.gateway.telemetry import Telemetry
from headway.serving.gateway.traceparent import HEADER
from headway.serving.gateway.tracing import Tracing
from headway.serving.gateway.watch import InterruptedWaitError, Phase, Watch
from headway.serving.gateway.workflow import with_run

BIG_BYTES = 256 * 2**10
"""A body from this size on is understood in a thread, one at a time, so that the others' streams go on meanwhile; only
the JSON parser itself holds them up."""
_MANY_RETRY_S = 1.0
_TOLD_MODELS = 20
_OPERATIONS = {CHAT: "chat", COMPLETIONS: "text_completion", EMBEDDINGS: "embeddings"}
"""OpenTelemetry's names for what the paths do."""
_MULTIPART_MODEL = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})')


@dataclass(slots=True)
class Admission:
    """Takes calls on, or refuses them.

    Attributes:
        config: the gateway's; its limits may change while it runs.
        pools: where calls may go.
        keys: who may ask.
        telemetry: counts refusals.
        clock: of limits and decisions.
        ratios: to estimate prompts' lengths.
        open: the requests that are being answered, by name.
        entering: requests whose body is being read (count).
        draining: no new ones are taken.
        tracing: is told of each call; None: nobody is.
        most_open: requests that this process can have open, whatever the configuration says (count).
    """

    config: Config
    pools: Sequence[RunningPool]
    keys: KeyRing
    telemetry: Telemetry
    clock: Clock
    ratios: TokenRatio = field(default_factory=TokenRatio)
    open: dict[str, Exchange] = field(default_factory=dict)
    entering: int = 0
    draining: bool = False
    tracing: Tracing | None = None
    most_open: int = sys.maxsize
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "bodies"))
    _ids: Ids = field(default_factory=lambda: Ids(secrets.token_hex(4)))

    @property
    def open_requests(self) -> int:
        """Requests that have come and have not ended (count)."""
        return len(self.open) + self.entering

    def client(self, http: web.BaseRequest) -> Client:
        """Who asks. AnswerError 401."""
        try:
            return self.keys.client(http.headers.get("Authorization", ""))
        except AnswerError as error:
            raise self._refused(error, "key") from None

    async def enter(self, http: web.BaseRequest, arrived_s: float) -> Exchange:
        """Take a call on; it is in `open` from now on, and its client's limits hold it. AnswerError: it isn't."""
        if self.draining:
            error = AnswerError(503, "the gateway is stopping", code="stopping", retry_after_s=_MANY_RETRY_S)
            raise self._refused(error, "draining")
        if self.open_requests >= min(self.config.limits.open_requests, self.most_open):
            error = AnswerError(
                429, "the gateway has as many requests as it takes", code="overloaded", retry_after_s=_MANY_RETRY_S
            )
            raise self._refused(error, "queue")
        client = self.client(http)
        self.entering += 1
        try:
            body = await self._body(http)
            check_path(http.rel_url.raw_path)
            call, pool = await self._understood(http, body)
            call = call.of_workflow(with_run(call.request.workflow or client.workflow, http.headers.get(HEADER)))
        except AnswerError as error:
            error.headers.setdefault("x-request-id", self.new_id(http))
            if error.counted:
                raise
            raise self._refused(error, "model" if error.code == "model_not_found" else "malformed") from None
        finally:
            self.entering -= 1
        return self._exchange(http, call, client, pool, arrived_s)

    def new_id(self, http: web.BaseRequest) -> str:
        """A name for a request."""
        return self._ids.new(http.headers.get("x-request-id", ""), self.open)

    def close(self) -> None:
        """Take no more bodies."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def pool_of(self, model: str) -> RunningPool | None:
        """The pool that serves a model: one that is configured to before one whose replicas happen to."""
        for pool in self.pools:
            if model in pool.pool.models:
                return pool
        for pool in self.pools:
            if not pool.pool.models and model in pool.models:
                return pool
        return None

    def models(self) -> tuple[str, ...]:
        """Names that clients may ask for, sorted."""
        return tuple(sorted({model for pool in self.pools for model in pool.models}))

    def _exchange(
        self, http: web.BaseRequest, call: Call, client: Client, pool: RunningPool, arrived_s: float
    ) -> Exchange:
        request = call.request
        router = pool.router
        strategy = http.headers.get("routing-strategy")
        if strategy:
            try:
                router = pool.router_for(strategy)
            except UsageError as error:
                answer = AnswerError(400, str(error), code="invalid_value", param="routing-strategy")
                answer.headers["x-request-id"] = request.id
                raise self._refused(answer, "malformed") from None
        try:
            client.enter(request.input_tokens, self.clock.now_s())
        except AnswerError as error:
            reason = "concurrency" if error.code == "concurrent_requests" else "rate"
            router.refused(request, self.clock.now_s(), status=429, reason=error.message, arrived_s=arrived_s)
            error.headers["x-request-id"] = request.id
            self.telemetry.refused(reason)
            raise
        exchange = Exchange(http, call, client, pool, router, self.clock, arrived_s)
        if self.tracing is not None:
            operation = _OPERATIONS.get(http.path, "other")
            exchange.traceparent = self.tracing.begin(request.id, http.headers.get(HEADER), operation)
        self.open[request.id] = exchange
        return exchange

    async def _understood(self, http: web.BaseRequest, body: bytes) -> tuple[Call, RunningPool]:
        """What is asked, and of which pool."""
        request_id = self.new_id(http)
        path = http.path
        if path in CALLS or http.content_type == "application/json":
            ask_usage = any(pool.pool.ask_usage for pool in self.pools)
            parse = partial(parse_call, request_id=request_id, ratios=self.ratios, ask_usage=ask_usage)
            if len(body) < BIG_BYTES:
                call = parse(path, body, http.headers)
            else:
                loop = asyncio.get_running_loop()
                call = await loop.run_in_executor(self._thread, parse, path, body, http.headers)
                call = call.named(self.new_id(http))  # another may have taken its name meanwhile
            model = call.request.model
        else:
            found = _MULTIPART_MODEL.search(body) if http.content_type == "multipart/form-data" else None
            model = found[1].decode("utf-8", "replace") if found else http.query.get("model", "")
            call = raw_call(model, body, http.headers, request_id=request_id)
        if model:
            pool = self.pool_of(model)
        else:  # paths and forms that name no model: one of the first pool's
            pool = self.pools[0]
            call = call.of_model(next(iter(pool.models), ""))
        if pool is None:
            raise self._no_model(model)
        if call.asks_usage and not pool.pool.ask_usage:
            call = call.with_body(body)
        return call, pool

    def _no_model(self, model: str) -> AnswerError:
        known = self.models()
        told = ", ".join(known[:_TOLD_MODELS]) + (
            f" and {len(known) - _TOLD_MODELS} more" if len(known) > _TOLD_MODELS else ""
        )
        if not known:
            return AnswerError(
                503,
                "no replica has said yet which models it serves",
                code="no_replica",
                retry_after_s=_MANY_RETRY_S,
            )
        return AnswerError(
            404,
            f"there is no model {model[:80]!r} here; there is {told}",
            code="model_not_found",
            param="model",
        )

    async def _body(self, http: web.BaseRequest) -> bytes:
        """The client's body, within the limits on size and time."""
        most_bytes = self.config.limits.body_bytes
        if (http.content_length or 0) > most_bytes:
            raise self._refused(_too_large(most_bytes), "body")
        if not http.body_exists:
            return b""
        if http.headers.get("Expect", "").lower() == "100-continue":
            await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts: list[bytes] = []
        size_bytes = 0
        try:
            with Watch(total_s=self.config.timeouts.body_s) as watch:
                watch.waits(Phase.BODY, self.config.timeouts.body_s)
                while chunk := await http.content.readany():
                    parts.append(chunk)
                    size_bytes += len(chunk)
                    if size_bytes > most_bytes:
                        raise self._refused(_too_large(most_bytes), "body")
        except InterruptedWaitError as wait:
            error = AnswerError(408, f"the body did not come within {wait.waited_s:.3g} s", code="request_timeout")
            raise self._refused(error, "timeout") from None
        except (web.RequestPayloadError, ValueError) as broken:
            error = AnswerError(400, f"the body can't be read: {broken}"[:200], code="invalid_body")
            raise self._refused(error, "malformed") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _refused(self, error: AnswerError, reason: str) -> AnswerError:
        """Count a refusal of which no router knows."""
        self.telemetry.refused(reason)
        self.telemetry.unrouted(error.status)
        error.counted = True
        return error


def _too_large(most_bytes: int) -> AnswerError:
    return AnswerError(413, f"the body has more than {most_bytes} bytes", code="request_too_large")
