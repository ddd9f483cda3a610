"""What the gateway answers of itself: health, readiness, models, metrics, state."""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from headway.serving.fleet import Condition
from headway.serving.gateway.admission import Admission
from headway.serving.gateway.answers import AnswerError
from headway.serving.gateway.telemetry import Now

_TAKING = (Condition.UP, Condition.TRIAL)


@dataclass(slots=True)
class Pages:
    """The pages.

    Attributes:
        admission: knows all there is to tell.
        admin_token: opens the state; empty: there is no such page.
        dropped: records that the journal, and spans that tracing had to leave out (counts).
    """

    admission: Admission
    admin_token: str
    dropped: Callable[[], tuple[int, int]]

    def health(self) -> web.Response:
        """200: the process lives."""
        return web.json_response({"status": "ok"})

    def ready(self) -> web.Response:
        """200 where any replica takes requests, else 503; also while the gateway stops."""
        now_s = self.admission.clock.now_s()
        up = sum(
            pool.fleet.condition(name, now_s) in _TAKING for pool in self.admission.pools for name in pool.fleet.names
        )
        good = up > 0 and not self.admission.draining
        word = "stopping" if self.admission.draining else "ready" if good else "no replica"
        return web.json_response({"status": word, "replicas": up}, status=200 if good else 503)

    def models(self, path: str) -> web.Response:
        """All models, or the one that the path names. AnswerError 404 where there is none such."""
        names = self.admission.models()
        entries = [{"id": name, "object": "model", "created": 0, "owned_by": "headway"} for name in names]
        wanted = path.removeprefix("/v1/models").strip("/")
        if not wanted:
            return web.json_response({"object": "list", "data": entries})
        for entry in entries:
            if entry["id"] == wanted:
                return web.json_response(entry)
        raise AnswerError(404, f"there is no model {wanted[:80]!r} here", code="model_not_found", param="model")

    def metrics(self, accept: str) -> web.Response:
        """For Prometheus."""
        now_s = self.admission.clock.now_s()
        failures: Counter[str] = Counter()
        for pool in self.admission.pools:
            failures.update(pool.scrape_failures)
        journal_dropped, spans_dropped = self.dropped()
        now = Now(
            replicas=[state for pool in self.admission.pools for state in pool.fleet.states(now_s)],
            taking=frozenset(
                name
                for pool in self.admission.pools
                for name in pool.fleet.names
                if pool.fleet.condition(name, now_s) in _TAKING
            ),
            open_requests=self.admission.open_requests,
            scrape_failures=failures,
            journal_dropped=journal_dropped,
            spans_dropped=spans_dropped,
        )
        page, content_type = self.admission.telemetry.page(now, accept)
        return web.Response(body=page, headers={"Content-Type": content_type})

    def state(self, authorization: str) -> web.Response:
        """The fleet as the policies see it, for people. AnswerError 404 without a token configured, 401 without it."""
        if not self.admin_token:
            raise AnswerError(404, "there is no such path", code="unknown_path")
        scheme, _, token = authorization.partition(" ")
        same = hmac.compare_digest(token.strip().encode("utf-8", "surrogateescape"), self.admin_token.encode())
        if scheme.lower() != "bearer" or not same:
            raise AnswerError(
                401, "this page needs the admin token", code="invalid_token", headers={"WWW-Authenticate": "Bearer"}
            )
        now_s = self.admission.clock.now_s()
        pools = [
            {
                "pool": pool.pool.name,
                "policy": pool.router.policy.name,
                "models": pool.models,
                "replicas": [
                    {
                        "name": state.name,
                        "url": state.spec.url,
                        "models": state.spec.models,
                        "device": state.spec.device,
                        "condition": pool.fleet.condition(state.name, now_s).value,
                        "requests": state.requests,
                        "prefill_tokens": state.prefill_tokens,
                        "decode_tokens": state.decode_tokens,
                        "running": state.running,
                        "waiting": state.waiting,
                        "kv_usage": state.report.kv_usage if state.report is not None else None,
                        "report_age_s": round(state.report_age_s, 3) if state.report is not None else None,
                    }
                    for state in pool.fleet.states(now_s)
                ],
            }
            for pool in self.admission.pools
        ]
        body = {"open_requests": self.admission.open_requests, "draining": self.admission.draining, "pools": pools}
        return web.Response(text=json.dumps(body, indent=1) + "\n", content_type="application/json")
