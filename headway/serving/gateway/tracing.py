"""One span per request to an OpenTelemetry collector."""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import headway
from headway.decide.journal import Record, RequestRecord
from headway.errors import UsageError
from headway.serving.gateway.traceparent import TraceContext, continued

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

_LOG = logging.getLogger(__name__)
MOST_WAITING = 8192  # spans for the exporter; 10 s at 800 requests/s
BATCH = 512
FLUSH_S = 1.0
TIMEOUT_S = 10.0
END_S = 5.0

Attribute = str | bool | int | float
_Item = tuple[TraceContext, str, RequestRecord]


class Tracing:
    """Keeps each request's place in its trace, and exports its span when its record is written.

    Nothing here waits for the collector: spans go into a bounded queue, and a thread exports them in batches. What does
    not fit, or what the collector does not take, is counted and said once.

    Attributes:
        dropped: spans that were left out.

    Raises:
        UsageError: in the constructor: the exporter is not installed, or the endpoint is no address.
    """

    def __init__(self, endpoint: str, *, share: float = 1.0, seed: int | None = None) -> None:
        """
        Args:
            endpoint: where OTLP over HTTP is taken: `http://collector:4318/v1/traces`.
            share: of the requests without a `traceparent` that are recorded, 0 to 1.
            seed: of ids and choice; None: from the system, as it must be where there are several gateways.
        """
        check_tracing(endpoint)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.dropped = 0
        self._random = random.Random(seed)
        self._share = share
        self._open: dict[str, tuple[TraceContext, str]] = {}
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._endpoint = endpoint
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint, timeout=TIMEOUT_S)
        self._success = SpanExportResult.SUCCESS
        logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)  # it speaks with every batch
        self._thread = threading.Thread(target=self._export, name="tracing", daemon=True)
        self._thread.start()

    def begin(self, request_id: str, traceparent: str | None, operation: str = "chat") -> str:
        """A request has come; the `traceparent` to send on to the engine.

        Args:
            request_id: as its record will name it. Each must end in `record` or `forget`.
            traceparent: the client's, if any.
            operation: `gen_ai.operation.name`: chat, text_completion or embeddings.
        """
        context = continued(traceparent, random=self._random, share=self._share)
        if context.sampled:
            self._open[request_id] = context, operation
        return context.header

    def record(self, record: Record) -> None:
        """Take in what goes into the journal: a request's record ends its span."""
        if not isinstance(record, RequestRecord):
            return
        found = self._open.pop(record.request, None)
        if found is None:
            return
        if self._queue.qsize() >= MOST_WAITING:
            self._drop(1, "the collector takes spans more slowly than requests end")
        else:
            self._queue.put((*found, record))

    def forget(self, request_id: str) -> None:
        """There will be no record of a request, and no span."""
        self._open.pop(request_id, None)

    def close(self) -> None:
        """Export what waits, for a few seconds at most. Blocking: not for the event loop's thread."""
        self._queue.put(None)
        self._thread.join(END_S)
        self._exporter.shutdown()
        self._thread.join(END_S)
        left = self._queue.qsize()
        if left:
            self._drop(left, "the collector did not take them before the end")

    def _export(self) -> None:
        for batch in self._batches():
            spans = [_span(*item) for item in batch]
            try:
                taken = self._exporter.export(spans) is self._success
            except Exception as error:  # of whatever kind: spans must not end the thread that counts them
                self._drop(len(spans), f"{type(error).__name__}: {error}")
            else:
                if not taken:
                    self._drop(len(spans), f"{self._endpoint} does not take them")

    def _batches(self) -> Iterator[list[_Item]]:
        while True:
            item = self._queue.get()
            until_s = time.monotonic() + FLUSH_S
            batch: list[_Item] = []
            try:
                while item is not None:
                    batch.append(item)
                    if len(batch) >= BATCH:
                        break
                    item = self._queue.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                pass
            if batch:
                yield batch
            if item is None:
                return

    def _drop(self, count: int, why: str) -> None:
        with self._lock:  # both threads count
            self.dropped += count
            if why in self._said:
                return
            self._said.add(why)
        _LOG.warning("tracing: spans are left out: %s", why)


def check_tracing(endpoint: str) -> None:
    """UsageError where the endpoint is no address or the exporter isn't installed. Starts nothing."""
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise UsageError("this is no address", where="tracing.endpoint", hint="write http://collector:4318/v1/traces")
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace.export  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError(
            "traces need OpenTelemetry", where="tracing", hint="pip install -e '.[otel]' in Headway's folder"
        ) from None


def _span(context: TraceContext, operation: str, record: RequestRecord) -> ReadableSpan:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED)
    parent = SpanContext(context.trace_id, context.parent_id, is_remote=True) if context.parent_id else None
    events = []
    if record.sent_s is not None:
        events.append(Event("headway.sent", timestamp=_ns(record.arrived_s + record.sent_s)))
    if record.ttft_s is not None:
        events.append(Event("headway.first_token", timestamp=_ns(record.arrived_s + record.ttft_s)))
    failed = record.end == "failed" or record.status >= 500
    return ReadableSpan(
        name=f"{operation} {record.group}",
        context=SpanContext(context.trace_id, context.span_id, is_remote=False, trace_flags=flags),
        parent=parent,
        resource=Resource.create({"service.name": "headway-gateway", "service.version": headway.__version__}),
        attributes=attributes(operation, record),
        events=events,
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
        start_time=_ns(record.arrived_s),
        end_time=_ns(record.arrived_s + record.e2e_s),
        instrumentation_scope=InstrumentationScope("headway.serving.gateway", headway.__version__),
    )


def attributes(operation: str, record: RequestRecord) -> dict[str, Attribute]:
    """A span's attributes: OpenTelemetry's names for generative AI, and `headway.` for what routing decided."""
    # "openai" is the convention's word for this API's format, whoever's engine speaks it.
    known: dict[str, Attribute | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": record.group,
        "gen_ai.conversation.id": record.session or None,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.response.time_to_first_chunk": record.ttft_s,
        "http.response.status_code": record.status,
        "error.type": record.end if record.end in ("failed", "cancelled", "refused") else None,
        "headway.request": record.request,
        "headway.replica": record.replica or None,
        "headway.policy": record.policy,
        "headway.rule": record.by or None,
        "headway.reason": record.reason or None,
        "headway.attempts": record.attempts,
        "headway.expected_cached_tokens": record.hit_tokens,
        "headway.predicted_ttft_s": record.predicted_ttft_s,
        "headway.workflow": record.workflow or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)
