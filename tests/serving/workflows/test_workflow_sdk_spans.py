"""Spans as OpenTelemetry's SDK prints them: its own exporter's output, and what is wrong in such a file."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import Status, StatusCode

from headway.errors import UsageError
from headway.serving.workflows.importing import Source, import_calls

START_NS = 1_800_000_000_000_000_000
CALL: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.usage.input_tokens": 100,
    "gen_ai.usage.output_tokens": 7,
    "tags": ["a", "b"],
}


def exported(*, one_line: bool = False) -> str:
    """A run of one call and of another that failed, as the exporter writes it."""
    out = io.StringIO()

    def formatted(span: ReadableSpan) -> str:
        return f"{span.to_json(indent=None if one_line else 4)}\n"

    provider = TracerProvider(resource=Resource({"team": "blue"}))
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=formatted)))
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("search", start_time=START_NS, end_on_exit=False) as root:
        good = tracer.start_span("chat m", attributes=CALL, start_time=START_NS + 10**9)
        good.end(START_NS + 3 * 10**9)
        bad = tracer.start_span("chat m", attributes=CALL, start_time=START_NS + 3 * 10**9)
        bad.set_status(Status(StatusCode.ERROR, "refused"))
        bad.end(START_NS + 4 * 10**9)
    root.end(START_NS + 5 * 10**9)
    return out.getvalue()


@pytest.mark.parametrize("one_line", [False, True])
def test_what_the_sdk_prints_is_read(one_line: bool) -> None:
    found = import_calls([Source("f", exported(one_line=one_line))])
    (call,) = found.calls
    assert (call.workflow, call.model, call.input_tokens, call.output_tokens) == ("search", "m", 100, 7)
    assert (call.start_s, call.end_s) == (1_800_000_001.0, 1_800_000_003.0)
    assert len(call.run) == 32
    assert found.left_out == {"failed": 1}
    (again,) = import_calls([Source("f", exported(one_line=one_line))], kind_attribute="team").calls
    assert again.workflow == "blue"


def test_a_last_span_that_is_half_there_is_left_alone() -> None:
    text = exported()
    cut = text.rindex('"search"')
    assert len(import_calls([Source("f", text[:cut])], kind_attribute="team").calls) == 1
    assert len(import_calls([Source("f", text[: cut + 4])], kind_attribute="team").calls) == 1


def test_what_is_wrong_is_named() -> None:
    span = json.loads(exported(one_line=True).splitlines()[0])
    good = json.dumps(span)
    wrong: list[tuple[dict[str, object], str]] = [
        ({"start_time": "yesterday"}, "f:2: start_time is 'yesterday', not a time in UTC"),
        ({"end_time": None}, "f:2: end_time is missing"),
        ({"context": {"span_id": "0x1"}}, "f:2: context.trace_id is missing"),
    ]
    for change, said in wrong:
        with pytest.raises(UsageError, match=said):
            import_calls([Source("f", f"{good}\n{json.dumps({**span, **change})}\n")])
    with pytest.raises(UsageError, match="f:2: not JSON"):
        import_calls([Source("f", f"{good}\nhello\n{good}\n")])
