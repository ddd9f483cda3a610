"""OpenTelemetry's spans: which are calls, which are the same call, of which run and kind they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from headway.decide.journal import RequestRecord
from headway.errors import UsageError
from headway.serving.gateway.tracing import attributes
from headway.serving.workflows.calls import Call
from headway.serving.workflows.importing import Source, import_calls
from headway.serving.workflows.otel import Imported, calls_of
from headway.serving.workflows.spans import read_spans
from tests.serving.workflows.made_calls import calls_of_one_kind

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
USED = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 7}
ZERO_NS = 1_800_000_000_000_000_000


def value(given: object) -> dict[str, object]:
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": str(given)}
    return {"doubleValue": given} if isinstance(given, float) else {"stringValue": given}


def listed(attributes: dict[str, Any]) -> list[dict[str, object]]:
    return [{"key": key, "value": value(each)} for key, each in attributes.items()]


def span(id: str, parent: str, start_s: float, end_s: float, attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "traceId": "t1",
        "spanId": id,
        "parentSpanId": parent,
        "name": f"span {id}",
        "kind": 3,
        "startTimeUnixNano": str(ZERO_NS + round(start_s * 1e9)),
        "endTimeUnixNano": str(ZERO_NS + round(end_s * 1e9)),
        "attributes": listed(attributes),
        **more,
    }


def export(*spans: dict[str, Any], resource: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "resourceSpans": [
            {"resource": {"attributes": listed(resource or {})}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}
        ]
    }


def taken(*spans: dict[str, Any], kind_attribute: str = "", resource: dict[str, Any] | None = None) -> Imported:
    text = json.dumps(export(*spans, resource=resource))
    return calls_of(read_spans(text, where="f"), kind_attribute=kind_attribute)


ROOT = span("root", "", 0, 10, {}, name="answer a question")


def test_a_call_has_all_that_its_span_says() -> None:
    found = taken(ROOT, span("a", "root", 1, 3.5, CHAT | USED))
    assert found.calls == (Call("answer a question", "t1", "a", "m", ZERO_NS / 1e9 + 1, ZERO_NS / 1e9 + 3.5, 100, 7),)
    assert (found.left_out, found.no_tokens) == ({}, 0)


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        (CHAT | USED, ("m", 100, 7)),
        (CHAT | {"gen_ai.usage.prompt_tokens": 3, "gen_ai.usage.completion_tokens": 4}, ("m", 3, 4)),
        ({"gen_ai.operation.name": "text_completion", "gen_ai.response.model": "r"} | USED, ("r", 100, 7)),
        (CHAT | {"gen_ai.response.model": "r"} | USED, ("m", 100, 7)),
        ({"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "e", **USED}, ("e", 100, 7)),
        ({"gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 9}, ("m", 9, 0)),
        ({"llm.request.type": "chat", "gen_ai.request.model": "m", "gen_ai.usage.prompt_tokens": 5}, ("m", 5, 0)),
        (
            {
                "openinference.span.kind": "LLM",
                "llm.model_name": "m",
                "llm.token_count.prompt": 8,
                "llm.token_count.completion": 2,
            },
            ("m", 8, 2),
        ),
        ({"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m", **USED}, None),
        ({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}, None),
        ({"openinference.span.kind": "CHAIN", "llm.model_name": "m"}, None),
        ({"http.request.method": "POST"}, None),
        ({"gen_ai.request.model": "m"}, None),
    ],
)
def test_which_spans_are_calls(attributes: dict[str, Any], wanted: tuple[str, int, int] | None) -> None:
    found = taken(ROOT, span("a", "root", 1, 2, attributes))
    assert [(c.model, c.input_tokens, c.output_tokens) for c in found.calls] == ([wanted] if wanted else [])


def test_the_spans_around_a_call_are_not_other_calls() -> None:
    found = taken(
        span("framework", "root", 1, 5, CHAT | USED),
        span("client", "framework", 1.5, 4.5, {"gen_ai.operation.name": "chat", "gen_ai.request.model": "n"}),
        span("http", "client", 2, 4, {"http.request.method": "POST"}),
        span("gateway", "http", 2.5, 3.5, {"gen_ai.operation.name": "chat"}),
        ROOT,
    )
    # The innermost one's times; what it does not say is taken from the next around it.
    assert [(c.id, c.model, c.input_tokens, c.end_s - c.start_s) for c in found.calls] == [("gateway", "n", 100, 1.0)]


def test_each_try_and_each_step_inside_of_a_call_is_a_call() -> None:
    found = taken(
        ROOT,
        span("whole", "root", 1, 9, CHAT | {"gen_ai.usage.input_tokens": 300, "gen_ai.usage.output_tokens": 21}),
        span("failed", "whole", 1, 2, CHAT, status={"code": 2}),
        span("first", "whole", 3, 4, CHAT | USED),
        span("second", "whole", 5, 6, CHAT),
    )
    assert [(c.id, c.input_tokens) for c in found.calls] == [("first", 100), ("second", 0)]
    assert (found.left_out, found.no_tokens) == ({"failed": 1}, 1)


def test_what_a_tool_or_an_agent_asks_is_a_call_of_its_own() -> None:
    found = taken(
        ROOT,
        span("outer", "root", 1, 9, CHAT | USED),
        span("tool", "outer", 2, 8, {"gen_ai.operation.name": "execute_tool"}),
        span("agent", "tool", 3, 7, {"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "n"} | USED),
        span("inner", "agent", 4, 6, CHAT | {"gen_ai.request.model": "n"} | USED),
    )
    assert [(c.id, c.model) for c in found.calls] == [("outer", "m"), ("inner", "n")]


def test_what_is_left_out_is_said() -> None:
    found = taken(
        ROOT,
        span("a", "root", 1, 2, CHAT, status={"code": "STATUS_CODE_ERROR"}),
        span("b", "root", 1, 2, CHAT | {"error.type": "cancelled"}),
        span("c", "root", 1, 1, CHAT),
        span("d", "root", 1, 2, {"gen_ai.operation.name": "chat"}),
        span("e", "root", 1, 2, CHAT | USED),
        span("e", "root", 1, 2, CHAT | USED),
    )
    assert [c.id for c in found.calls] == ["e"]
    assert found.left_out == {
        "failed": 2,
        "took no time": 1,
        "without a model's name": 1,
        "there already": 1,
    }
    nameless = taken(span("root", "", 0, 9, CHAT, name=""))
    assert (nameless.calls, nameless.left_out) == ((), {"in a trace without a name": 1})


def test_the_kind_is_the_roots_name_or_an_attribute_of_the_call_of_one_above_it_or_of_the_resource() -> None:
    a, b = span("a", "root", 1, 2, CHAT | {"team": "x"}), span("b", "root", 3, 4, CHAT)
    root = span("root", "", 0, 9, {"team": "y"}, name="r")
    resource = {"service.name": "bot"}

    def kinds(*spans: dict[str, Any], attribute: str = "") -> list[str]:
        return [c.workflow for c in taken(*spans, kind_attribute=attribute, resource=resource).calls]

    assert kinds(a, b, root) == ["r", "r"]
    assert kinds(a, b, root, attribute="team") == ["x", "y"]
    assert kinds(a, b, root, attribute="service.name") == ["bot", "bot"]
    assert kinds(a, b) == ["span a", "span a"]  # the root is not there: the first that has no parent here
    assert taken(a, b, kind_attribute="team").left_out == {"without the attribute team": 1}


def test_a_gateways_own_spans_say_of_which_run_they_are() -> None:
    record = RequestRecord(
        t_s=3.0,
        group="m",
        request="r1",
        arrived_s=1.0,
        e2e_s=2.0,
        policy="p",
        status=200,
        input_tokens=100,
        output_tokens=7,
        end="done",
        workflow="beam/17",
    )
    found = taken(span("a", "somewhere", 1, 3, dict(attributes("chat", record))))
    assert [(c.workflow, c.run, c.model, c.input_tokens) for c in found.calls] == [("beam", "17", "m", 100)]


def test_a_trace_may_be_in_several_files_and_parents_in_a_circle_do_not_hang() -> None:
    files = [Source(str(n), json.dumps(export(each))) for n, each in enumerate((ROOT, span("a", "root", 1, 2, CHAT)))]
    assert [c.workflow for c in import_calls(files).calls] == ["answer a question"]
    assert import_calls([*files, files[1]]).left_out == {"there already": 1}
    circle = taken(span("a", "b", 1, 2, {}), span("b", "a", 1, 2, {}), span("c", "a", 1, 2, CHAT))
    assert circle.left_out == {"in a trace without a name": 1}


GOOD = span("a", "", 1, 2, CHAT)


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ('{"resourceSpans": 1}', "f", "resourceSpans is 1, not a list"),
        ("{}", "f", "resourceSpans is missing, not a list"),
        (json.dumps(export({**GOOD, "spanId": ""})), "f", "resourceSpans[0].scopeSpans[0].spans[0].spanId is ''"),
        (json.dumps(export(GOOD, {**GOOD, "traceId": None})), "f", "spans[1].traceId is missing, not text"),
        (json.dumps(export({**GOOD, "endTimeUnixNano": "x"})), "f", "endTimeUnixNano is 'x', not a number of nano"),
        (json.dumps(export({**GOOD, "startTimeUnixNano": True})), "f", "startTimeUnixNano is True"),
        (json.dumps(export({**GOOD, "endTimeUnixNano": "9" * 400})), "f", "endTimeUnixNano is '999"),
        (json.dumps(export({**GOOD, "attributes": {}})), "f", "spans[0].attributes is {}, not a list"),
        (f"{json.dumps(export(GOOD))}\n\n{{]\n", "f:3", "not JSON"),
        (f"{json.dumps(export(GOOD))}\n{json.dumps(export(7))}\n", "f:2", "startTimeUnixNano is missing"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, where: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_spans(text, where="f")
    assert caught.value.where == where
    assert words in caught.value.what


def test_attributes_of_other_types_and_older_exports_are_read() -> None:
    odd = {**GOOD, "attributes": [*GOOD["attributes"], {"key": "x", "value": {"arrayValue": {"values": []}}}]}
    odd["attributes"] += [
        {"key": "gen_ai.usage.input_tokens", "value": {"doubleValue": 12.0}},
        {"key": "gen_ai.usage.output_tokens", "value": {"doubleValue": "Infinity"}},
    ]
    old = {"resourceSpans": [{"instrumentationLibrarySpans": [{"spans": [odd]}]}, {}]}
    (call,) = calls_of(read_spans(json.dumps(old), where="f")).calls
    assert (call.input_tokens, call.output_tokens) == (12, 0)


def as_lines(calls: list[Call]) -> str:
    """Calls as a framework would export them: a root for each run, a span around each call."""
    lines = []
    for call in calls:
        start_s, end_s = call.start_s, call.end_s
        used = {"gen_ai.usage.input_tokens": call.input_tokens, "gen_ai.usage.output_tokens": call.output_tokens}
        asked = {"gen_ai.operation.name": "chat", "gen_ai.request.model": call.model}
        pair = (
            span(f"around {call.id}", f"root {call.run}", start_s - 0.5, end_s + 0.5, asked | used),
            span(call.id, f"around {call.id}", start_s, end_s, asked),
        )
        lines.append(export(*({**each, "traceId": call.run} for each in pair)))
    roots = [{**span(f"root {run}", "", -1, 1000, {}, name="w"), "traceId": run} for run in {c.run for c in calls}]
    return "\n".join(map(json.dumps, [*lines, *map(export, roots)]))


@settings(deadline=None, max_examples=25)
@given(calls_of_one_kind())
def test_calls_that_were_exported_are_imported_again(calls: list[Call]) -> None:
    found = calls_of(read_spans(as_lines(calls), where="f"))
    assert not found.left_out
    zero_s = ZERO_NS / 1e9
    back = [
        Call(c.workflow, c.run, c.id, c.model, c.start_s - zero_s, c.end_s - zero_s, c.input_tokens, c.output_tokens)
        for c in found.calls
    ]
    assert sorted(back, key=lambda c: int(c.id)) == calls  # multiples of 1/64 s are exact on this clock


def test_what_the_opentelemetry_sdk_records_is_read() -> None:
    encoder = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    to_json = pytest.importorskip("google.protobuf.json_format").MessageToJson
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "bot"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("test")
    for question in range(2):
        with tracer.start_as_current_span("answer", attributes={"question": question}):
            for _ in range(3):
                with (
                    tracer.start_as_current_span("chat m", attributes={**CHAT, **USED}),
                    tracer.start_as_current_span("POST", attributes={"http.request.method": "POST"}),
                    tracer.start_as_current_span("gateway", attributes=CHAT),
                ):
                    pass
    text = to_json(encoder.encode_spans(kept.get_finished_spans()))
    provider.shutdown()
    found = import_calls([Source("f", text)])
    assert [(c.workflow, c.model, c.input_tokens, c.output_tokens) for c in found.calls] == [
        ("answer", "m", 100, 7)
    ] * 6
    assert len({c.run for c in found.calls}) == 2
    assert (dict(found.left_out), found.no_tokens) == ({}, 0)
    by_question = import_calls([Source("f", text)], kind_attribute="question")
    assert [c.workflow for c in by_question.calls] == ["0"] * 3 + ["1"] * 3
