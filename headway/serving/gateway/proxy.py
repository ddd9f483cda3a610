"""The way of a call that was taken on: which replica, what comes back, what is said when that fails."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from headway.serving.gateway.admission import Admission
from headway.serving.gateway.answers import AnswerError
from headway.serving.gateway.exchange import Exchange, send_last
from headway.serving.gateway.health import Health
from headway.serving.gateway.relay import ClientGoneError, relay_stream, relay_whole
from headway.serving.gateway.traceparent import HEADER
from headway.serving.gateway.upstream import (
    RETRIED,
    TOO_MANY,
    ReplicaError,
    ask,
    request_headers,
    response_headers,
)
from headway.serving.gateway.watch import InterruptedWaitError, Phase, Watch
from headway.serving.policy import Choice
from headway.serving.request import End
from headway.serving.router import NoReplicaError

LAST_WORDS_S = 2.0
"""For a client to take the error event of a stream that broke."""
CLIENT_GONE = 499
"""Status in journal and metrics of a request whose client went away; nginx's number for it."""
_NO_REPLICA_RETRY_S = 5.0
_FULL_RETRY_S = 1.0
_REASON_LIMIT = 200


@dataclass(slots=True)
class Proxy:
    """Answers calls by replicas' answers.

    Attributes:
        admission: takes calls on.
        connections: to the replicas.
        health: asks a replica that answered 500 how it is.
    """

    admission: Admission
    connections: aiohttp.ClientSession
    health: Health

    async def answer(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer a call to the API; errors come back in OpenAI's shape."""
        arrived_s = self.admission.clock.now_s()
        exchange: Exchange | None = None
        try:
            exchange = await self.admission.enter(http, arrived_s)
            return await self._answered(exchange)
        except AnswerError as error:
            response = error.response()
            if exchange is not None:
                response.headers["x-request-id"] = exchange.id
            if error.status in (408, 413) or self.admission.draining:
                response.force_close()  # what is left of a body must not be taken for another request
            return response
        finally:
            if exchange is not None:
                if not exchange.over:  # a mistake of ours, whatever it was: nothing may stay counted for ever
                    exchange.refused(500, "the gateway made a mistake")
                del self.admission.open[exchange.id]

    async def _answered(self, exchange: Exchange) -> web.StreamResponse:
        """Try replicas until one answers, as often as the configuration says."""
        config = self.admission.config
        most = config.retries.attempts
        end_s = time.monotonic() + config.timeouts.total_s
        failed: set[str] = set()
        error: ReplicaError | None = None
        for attempt in range(1, most + 1):
            choice = self._routed(exchange, failed, error)
            exchange.counts = True
            exchange.pool.entered(choice.replica)
            try:
                with Watch(total_s=end_s - time.monotonic()) as watch:
                    exchange.watch = watch
                    response = await self._attempted(exchange, choice, watch, attempt, failed)
            except ReplicaError as failure:
                error = failure
                failed.add(choice.replica)
                if exchange.response is not None:
                    return await self._broken(exchange, _of_replica(failure), End.FAILED, str(failure))
            except InterruptedWaitError as wait:
                error = _stalled(wait)
                failed.add(choice.replica)
                if error is None or exchange.response is not None:
                    return await self._interrupted(exchange, wait)
            except ClientGoneError:
                exchange.ended(End.CANCELLED, CLIENT_GONE, self.admission.ratios, "the client went away")
                assert exchange.response is not None  # it was while writing to it
                return exchange.response
            except BaseException as other:  # cancelled, when the client went away; or a mistake of ours
                gone = isinstance(other, asyncio.CancelledError)
                exchange.ended(End.CANCELLED, CLIENT_GONE if gone else 500, self.admission.ratios, type(other).__name__)
                raise
            else:
                self._was_answered(exchange, choice, response.status)
                return response
            finally:
                exchange.pool.left(choice.replica)
        assert error is not None  # at least one attempt, and each other way out returns
        answer = _of_replica(error)
        exchange.ended(End.FAILED, answer.status, self.admission.ratios, str(error))
        raise answer

    def _routed(self, exchange: Exchange, failed: set[str], error: ReplicaError | None) -> Choice:
        """The replica for the next attempt. AnswerError: there is none, or it would be too late."""
        pool, request = exchange.pool, exchange.call.request
        try:
            choice = exchange.choice = exchange.router.route(
                request,
                exchange.clock.now_s(),
                failed | pool.full if failed or pool.full else frozenset(),
                arrived_s=exchange.arrived_s,
                why=str(error) if error is not None else "",
                before=End.CANCELLED if error is not None and not error.counts else End.FAILED,
            )
        except NoReplicaError as nobody:
            raise self._nobody(exchange, nobody, error) from None
        predicted_s, goal_s = choice.predicted_ttft_s, request.slo_ttft_s
        if pool.pool.shed_hopeless and predicted_s is not None and goal_s is not None and predicted_s > goal_s:
            what = f"the first token would come after {1000 * predicted_s:.3g} ms, not within {1000 * goal_s:.3g} ms"
            exchange.shed(429, what)
            self.admission.telemetry.refused("slo")
            raise AnswerError(
                429,
                what,
                code="slo_hopeless",
                param="x-slo-ttft-ms",
                retry_after_s=predicted_s - goal_s,
            )
        return choice

    def _nobody(self, exchange: Exchange, nobody: NoReplicaError, error: ReplicaError | None) -> AnswerError:
        """No replica may take it: the first one's failure, where there was one, else why there is none."""
        if error is not None:
            answer = _of_replica(error)
            busy = error.status == TOO_MANY
            exchange.counts = error.counts
            exchange.ended(End.DONE if busy else End.FAILED, answer.status, self.admission.ratios, str(error))
            return answer
        wait_s = nobody.retry_s
        if exchange.pool.full and wait_s == 0:
            answer = AnswerError(429, "all replicas are full", code="queue_full", retry_after_s=_FULL_RETRY_S)
            self.admission.telemetry.refused("queue")
        else:
            wait_s = wait_s if wait_s is not None and math.isfinite(wait_s) else _NO_REPLICA_RETRY_S
            answer = AnswerError(503, nobody.what, code="no_replica", retry_after_s=wait_s)
            self.admission.telemetry.refused("no-replica")
        exchange.refused(answer.status, answer.message)
        return answer

    async def _attempted(
        self, exchange: Exchange, choice: Choice, watch: Watch, attempt: int, failed: set[str]
    ) -> web.StreamResponse:
        """One replica's answer, passed on. ReplicaError, ClientGoneError; InterruptedWaitError comes from `watch`."""
        http, call, pool, config = exchange.http, exchange.call, exchange.pool, self.admission.config
        limits = config.timeouts
        headers = request_headers(
            http.headers,
            peer=http.remote or "",
            scheme=http.scheme,
            request_id=exchange.id,
            authorization=pool.authorization_for(http.headers.get("Authorization", "")),
        )
        if exchange.traceparent:
            headers[HEADER] = exchange.traceparent
        watch.waits(Phase.FIRST_BYTE, limits.first_byte_s if call.streams else limits.total_s)
        url = URL(pool.base(choice.replica) + http.rel_url.raw_path_qs, encoded=True)
        answer = await ask(self.connections, http.method, url, headers=headers, body=call.body or None)
        try:
            retried = answer.status in RETRIED or (answer.status == TOO_MANY and config.retries.on_too_many)
            if retried and attempt < config.retries.attempts:
                raise ReplicaError(
                    f"answered {answer.status}",
                    "status",
                    status=answer.status,
                    retry_after=answer.headers.get("Retry-After", ""),
                    counts=answer.status != TOO_MANY,
                )
            exchange.counts = answer.status in RETRIED or answer.status < 500
            if answer.status == 500 and await self._is_tried_elsewhere(exchange, choice, failed, attempt):
                raise ReplicaError("answered 500", "status", status=500, counts=exchange.counts)
            passed = response_headers(answer.headers)
            _explain(passed, exchange, choice, attempt)
            if answer.content_type == "text/event-stream":
                return await relay_stream(exchange, answer, passed, watch, limits)
            return await relay_whole(exchange, answer, passed, watch, limits)
        finally:
            answer.close()  # gives a connection back only where the answer was read to its end

    async def _is_tried_elsewhere(self, exchange: Exchange, choice: Choice, failed: set[str], attempt: int) -> bool:
        """What becomes of a 500, by the rule in `doubts.py`; `exchange.counts` says whose fault it is."""
        pool, request, name = exchange.pool, exchange.call.request, choice.replica
        suspect = ill = not await self.health.well(pool.base(name), pool.own_headers())
        now_s = exchange.clock.now_s()
        if not ill:
            suspect = pool.doubts.erred(name, hash(exchange.call.body), now_s)
        left = self.admission.config.retries.attempts - attempt
        if suspect and left and pool.fleet.candidates(request, now_s, failed | pool.full | {name}):
            exchange.counts = ill
            if not ill:
                exchange.doubted.append(name)
            return True
        exchange.counts = ill or pool.doubts.condemned(name, now_s)
        return False

    def _was_answered(self, exchange: Exchange, choice: Choice, status: int) -> None:
        """A replica's answer was passed on as a whole."""
        pool, now_s = exchange.pool, exchange.clock.now_s()
        end = End.FAILED if status >= 500 else End.DONE
        exchange.ended(end, status, self.admission.ratios, f"answered {status}")
        if status < 400:
            pool.doubts.answered(choice.replica)
            for name in exchange.doubted:
                exchange.router.blamed(name, now_s, f"answered 500 to what {choice.replica} answers")

    async def _interrupted(self, exchange: Exchange, wait: InterruptedWaitError) -> web.StreamResponse:
        """A wait was ended that can't be made up for on another replica."""
        if wait.phase is Phase.CLIENT and not wait.total:
            return await self._broken(exchange, None, End.CANCELLED, "the client did not read")
        if wait.phase is Phase.STOP:
            answer = AnswerError(503, "the gateway is stopping", code="stopping", retry_after_s=_FULL_RETRY_S)
            return await self._broken(exchange, answer, End.CANCELLED, "the gateway stopped")
        answer = AnswerError(
            504, f"gave up after {wait.waited_s:.3g} s, waiting for {wait.phase.value}", code="timeout"
        )
        self.admission.telemetry.refused("timeout")
        return await self._broken(exchange, answer, End.FAILED, str(wait))

    async def _broken(self, exchange: Exchange, answer: AnswerError | None, end: End, why: str) -> web.StreamResponse:
        """What a client gets whose answer ends here: an error, or as its stream's last event; None: nothing."""
        response = exchange.response
        if response is None:
            assert answer is not None  # a client that does not read has begun to get something
            exchange.ended(end, answer.status, self.admission.ratios, why)
            raise answer
        exchange.ended(end, response.status, self.admission.ratios, why)
        is_stream = response.content_type == "text/event-stream"
        event = answer.event() if answer is not None and is_stream else b""
        await send_last(response, exchange.http.transport, event, limit_s=LAST_WORDS_S)
        return response


def _explain(headers: CIMultiDict[str], exchange: Exchange, choice: Choice, attempt: int) -> None:
    """Say in the answer's headers who answers, and why."""
    headers["x-request-id"] = exchange.id
    headers["x-headway-replica"] = _header(choice.replica)
    headers["x-headway-policy"] = _header(choice.by)
    headers["x-headway-reason"] = _header(choice.reason)
    if choice.predicted_ttft_s is not None:
        headers["x-headway-predicted-ttft-ms"] = f"{1000 * choice.predicted_ttft_s:.1f}"
    if attempt > 1:
        headers["x-headway-attempts"] = str(attempt)


def _header(text: str) -> str:
    """Text that may stand in a header."""
    if not text.isascii() or not text.isprintable():
        text = "".join(each if each.isascii() and each.isprintable() else "?" for each in text)
    return text[:_REASON_LIMIT]


def _stalled(wait: InterruptedWaitError) -> ReplicaError | None:
    """The failure that a wait amounts to which may be tried on another replica; else None."""
    if wait.phase is not Phase.FIRST_BYTE or wait.total:
        return None
    return ReplicaError(f"sent nothing for {wait.waited_s:.3g} s", "stall")


def _of_replica(error: ReplicaError) -> AnswerError:
    """What a client gets where the last replica failed so."""
    message = f"the replica {error}"
    if error.kind == "stall":
        return AnswerError(504, message, code="upstream_timeout")
    if error.kind == "connect":
        return AnswerError(502, message, code="upstream_unreachable")
    if error.kind == "broken":
        return AnswerError(502, message, code="upstream_broken")
    headers = {"Retry-After": error.retry_after} if error.retry_after else {}
    return AnswerError(error.status, message, code=f"upstream_{error.status}", headers=headers)
