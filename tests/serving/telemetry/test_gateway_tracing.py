"""Traces: the header, and spans as a collector gets them."""

from __future__ import annotations

import gzip
import logging
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from headway.decide.journal import RequestRecord
from headway.errors import UsageError
from headway.serving.gateway import tracing as module
from headway.serving.gateway.traceparent import continued, parse
from headway.serving.gateway.tracing import Tracing

LIMIT_S = 10.0
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """Takes OTLP over HTTP.

    Attributes:
        exports: what came, decoded.
        status: what it answers.
        hold: its answers wait for this.
        arrived: set when something came.
    """

    def __init__(self) -> None:
        self.exports: list[ExportTraceServiceRequest] = []
        self.status = 200
        self.hold = threading.Event()
        self.hold.set()
        self.arrived = threading.Event()
        self.url = ""

    @property
    def spans(self) -> list[Span]:
        return [s for e in self.exports for r in e.resource_spans for scope in r.scope_spans for s in scope.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.arrived.set()
            collector.hold.wait(LIMIT_S)
            if self.path == "/v1/traces" and collector.status == 200:
                collector.exports.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        try:
            yield collector
        finally:
            collector.hold.set()
            server.shutdown()
            thread.join(LIMIT_S)


def record(request: str = "r-1", **more: object) -> RequestRecord:
    given = {
        "t_s": 1002.0,
        "group": "llama",
        "request": request,
        "arrived_s": 1000.0,
        "sent_s": 0.002,
        "replica": "a",
        "policy": "learned",
        "by": "lmetric",
        "reason": "least tokens x requests",
        "input_tokens": 100,
        "hit_tokens": 64,
        "cached_tokens": 48,
        "output_tokens": 7,
        "ttft_s": 0.25,
        "e2e_s": 2.0,
        "status": 200,
        "end": "done",
        "session": "s",
        **more,
    }
    return RequestRecord.model_validate(given)


def test_a_header_is_read_and_continued() -> None:
    caller = parse(PARENT)
    assert caller is not None
    assert caller.header == PARENT
    mine = continued(PARENT, random=random.Random(1), share=0.0)
    assert mine.trace_id == caller.trace_id
    assert mine.parent_id == caller.span_id
    assert mine.span_id != caller.span_id
    assert mine.sampled  # the caller's choice, whatever our share
    again = parse(mine.header)
    assert again is not None
    assert (again.trace_id, again.span_id) == (mine.trace_id, mine.span_id)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "hello",
        PARENT.upper(),
        PARENT.replace("00-", "ff-", 1),
        PARENT + "-more",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        PARENT[:-1],
    ],
)
def test_a_malformed_header_begins_a_new_trace(header: str) -> None:
    assert parse(header) is None
    mine = continued(header, random=random.Random(1), share=1.0)
    assert mine.parent_id == 0
    assert mine.sampled
    assert parse(mine.header) is not None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    later = parse(PARENT.replace("00-", "01-", 1) + "-what-comes")
    assert later is not None
    assert later.sampled


def _plain(value: AnyValue) -> object:
    return getattr(value, value.WhichOneof("value") or "string_value")


def test_a_span_as_the_collector_gets_it() -> None:
    with collecting() as collector:
        tracing = Tracing(collector.url, seed=1)
        header = tracing.begin("r-1", PARENT, "chat")
        tracing.record(record())
        tracing.close()
        (span,) = collector.spans
        assert span.trace_id.hex() == PARENT.split("-")[1]
        assert span.parent_span_id.hex() == PARENT.split("-")[2]
        assert span.span_id.hex() == header.split("-")[2]  # the engine's span is a child of this one
        assert span.name == "chat llama"
        assert span.start_time_unix_nano == 1000 * 10**9
        assert span.end_time_unix_nano == 1002 * 10**9
        told = {each.key: _plain(each.value) for each in span.attributes}
        assert told["gen_ai.operation.name"] == "chat"
        assert told["gen_ai.request.model"] == "llama"
        assert told["gen_ai.usage.input_tokens"] == 100
        assert told["gen_ai.usage.output_tokens"] == 7
        assert told["gen_ai.usage.cache_read.input_tokens"] == 48
        assert told["gen_ai.conversation.id"] == "s"
        assert told["http.response.status_code"] == 200
        assert told["headway.replica"] == "a"
        assert told["headway.rule"] == "lmetric"
        assert told["headway.reason"] == "least tokens x requests"
        assert "headway.predicted_ttft_s" not in told
        assert "error.type" not in told
        assert [event.name for event in span.events] == ["headway.sent", "headway.first_token"]
        (resource,) = [r.resource for r in collector.exports[0].resource_spans]
        assert {a.key: _plain(a.value) for a in resource.attributes}["service.name"] == "headway-gateway"
        assert tracing.dropped == 0


def test_failures_are_errors_and_what_is_not_sampled_is_not_sent() -> None:
    with collecting() as collector:
        tracing = Tracing(collector.url, share=0.0, seed=1)
        assert tracing.begin("unsampled", None).endswith("-00")
        tracing.record(record("unsampled"))
        tracing.begin("failed", PARENT)
        tracing.record(record("failed", end="failed", status=502))
        tracing.begin("gone", PARENT)
        tracing.forget("gone")
        tracing.record(record("gone"))
        tracing.close()
        (span,) = collector.spans
        told = {each.key: _plain(each.value) for each in span.attributes}
        assert told["headway.request"] == "failed"
        assert told["error.type"] == "failed"
        assert span.status.code == span.status.STATUS_CODE_ERROR


def test_nobody_waits_for_a_collector_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    monkeypatch.setattr(module, "BATCH", 1)
    with collecting() as collector, caplog.at_level(logging.WARNING):
        collector.hold.clear()
        tracing = Tracing(collector.url, seed=1)
        tracing.begin("first", PARENT)
        tracing.record(record("first"))
        assert collector.arrived.wait(LIMIT_S)  # the thread is now held up
        for number in range(20):
            tracing.begin(f"r-{number}", PARENT)
            tracing.record(record(f"r-{number}"))
        assert tracing.dropped == 15
        collector.hold.set()
        tracing.close()
        assert len(collector.spans) == 1 + 5
    told = [r.getMessage() for r in caplog.records if r.name.startswith("headway")]
    assert told == ["tracing: spans are left out: the collector takes spans more slowly than requests end"]


def test_what_the_collector_does_not_take_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector, caplog.at_level(logging.WARNING):
        collector.status = 400
        tracing = Tracing(collector.url, seed=1)
        for number in range(3):
            tracing.begin(f"r-{number}", None)
            tracing.record(record(f"r-{number}"))
        tracing.close()
        assert tracing.dropped == 3
    told = [r.getMessage() for r in caplog.records if r.name.startswith("headway")]
    assert len(told) == 1
    assert "does not take them" in told[0]


def test_an_endpoint_that_is_none() -> None:
    with pytest.raises(UsageError, match="is no address"):
        Tracing("collector:4318")


def test_without_the_exporter_it_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(UsageError, match=r"pip install -e '.\[otel\]'"):
        Tracing("http://127.0.0.1:1/v1/traces")
