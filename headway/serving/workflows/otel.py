"""From OpenTelemetry's spans for generative AI to calls of workflows. Pure.

A trace is a run; the kind of workflow is the name of the trace's root span, or an attribute that the user names. The
names read are those of the semantic conventions (gen_ai.*, the older token counts too) and OpenInference's (llm.*).

One call often has several spans around each other: the framework's, the client library's, a gateway's. Of these the
innermost is the call: it is what the engine was asked, and where a client tries again, each try is one. A span lies
around another if it is above it in the trace with no tool or agent between: what a tool asks of a model is a call of
its own, though the framework may have its span inside of the call that asked for the tool.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.serving.workflows.calls import Call
from headway.serving.workflows.record import distinct, named
from headway.serving.workflows.spans import Span, Value

OPERATION = "gen_ai.operation.name"
OTHER_OPERATION = ("openinference.span.kind", "llm.request.type", "traceloop.span.kind")
"""OpenInference's, OpenLLMetry's before the conventions, and its kind of spans that are no calls."""
CALL_OPERATIONS = frozenset(
    (
        *("chat", "text_completion", "embeddings", "generate_content"),  # the conventions'
        *("completion", "embedding", "rerank"),  # llm.request.type
        *("llm", "reranker"),  # OpenInference, in small letters
    )
)
OUTER_OPERATIONS = frozenset(("execute_tool", "invoke_agent", "create_agent", "invoke_workflow", "tool", "agent"))
"""What lies between a call and one that is made because of it."""
MODEL = (
    *("gen_ai.request.model", "gen_ai.response.model"),
    *("llm.model_name", "embedding.model_name", "reranker.model_name"),
)
INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
WORKFLOW = "headway.workflow"
"""The gateway's own spans have it, as `kind/run`."""
TWICE = "there already"


@dataclass(frozen=True, slots=True)
class Imported:
    """Calls, and what could not be taken.

    Attributes:
        calls: the calls.
        left_out: others, in words for people, and how many.
        no_tokens: calls that are taken without any token counts, as 0 (count).
    """

    calls: tuple[Call, ...]
    left_out: Mapping[str, int]
    no_tokens: int = 0


def calls_of(spans: Iterable[Span], *, kind_attribute: str = "") -> Imported:
    """The calls in some spans, in order of their starts.

    Args:
        spans: of whole traces, in any order; a trace's may come from several files.
        kind_attribute: attribute that names the kind of workflow: of the call's span, of one above it, or of the
            resource; empty: `headway.workflow`, else the root's name.
    """
    traces: dict[str, dict[str, Span]] = defaultdict(dict)
    left_out: Counter[str] = Counter()
    for span in spans:
        if span.id in traces[span.trace]:
            left_out[TWICE] += _is_call(span)
        else:
            traces[span.trace][span.id] = span
    calls: list[Call] = []
    no_tokens = 0
    for trace in traces.values():
        found = _calls_of_trace(trace, kind_attribute)
        calls += found.calls
        left_out.update(found.left_out)
        no_tokens += found.no_tokens
    calls.sort(key=lambda call: (call.start_s, call.end_s))
    return Imported(tuple(distinct(calls)), {why: count for why, count in left_out.items() if count}, no_tokens)


def _calls_of_trace(trace: Mapping[str, Span], kind_attribute: str) -> Imported:
    inside: dict[str, list[Span]] = defaultdict(list)
    around: dict[str, Span] = {}
    asked = [span for span in trace.values() if _is_call(span)]
    for span in asked:
        outer = _around(span, trace)
        if outer is not None:
            inside[outer.id].append(span)
            around[span.id] = outer
    root = min((span for span in trace.values() if span.parent not in trace), key=_start_s, default=None)
    calls = []
    left_out: Counter[str] = Counter()
    no_tokens = 0
    for span in asked:
        if inside[span.id]:
            continue
        alike = [span]  # spans of the same call, from the innermost outwards
        while (outer := around.get(alike[-1].id)) is not None and len(inside[outer.id]) == 1:
            alike.append(outer)
        model = _first(alike, MODEL)
        kind, run = _workflow(span, trace, root, kind_attribute)
        why = _why_not(span, model, kind, kind_attribute)
        if why:
            left_out[why] += 1
            continue
        tokens = [_count(_first(alike, names)) for names in (INPUT_TOKENS, OUTPUT_TOKENS)]
        no_tokens += tokens == [None, None]
        calls.append(
            Call(
                workflow=kind,
                run=run or span.trace,
                id=span.id,
                model=str(model),
                start_s=span.start_s,
                end_s=span.end_s,
                input_tokens=tokens[0] or 0,
                output_tokens=tokens[1] or 0,
            )
        )
    return Imported(tuple(calls), left_out, no_tokens)


def _why_not(span: Span, model: Value | None, kind: str, kind_attribute: str) -> str:
    if span.failed:
        return "failed"
    if span.end_s <= span.start_s:
        return "took no time"
    if not isinstance(model, str) or not model:
        return "without a model's name"
    if not kind:
        return f"without the attribute {kind_attribute}" if kind_attribute else "in a trace without a name"
    return ""


def _is_call(span: Span) -> bool:
    operation = _operation(span)
    if operation:
        return operation in CALL_OPERATIONS
    tokens = _first([span], INPUT_TOKENS) is not None or _first([span], OUTPUT_TOKENS) is not None
    return tokens and _first([span], MODEL) is not None


def _operation(span: Span) -> str:
    found = _first([span], (OPERATION, *OTHER_OPERATION))
    return found.lower() if isinstance(found, str) else ""


def _around(span: Span, trace: Mapping[str, Span]) -> Span | None:
    """The call's span that lies next around this one, if any."""
    for above in _above(span, trace):
        if _is_call(above):
            return above
        if _operation(above) in OUTER_OPERATIONS:
            return None
    return None


def _above(span: Span, trace: Mapping[str, Span]) -> Iterator[Span]:
    """Parent, its parent and so on, as far as the trace has them."""
    seen = {span.id}
    while (parent := trace.get(span.parent)) is not None and parent.id not in seen:
        seen.add(parent.id)
        yield parent
        span = parent


def _workflow(span: Span, trace: Mapping[str, Span], root: Span | None, kind_attribute: str) -> tuple[str, str]:
    """(kind, run); the run is empty where the trace is it, the kind where nothing names it."""
    line = [span, *_above(span, trace)]
    if kind_attribute:
        found = _first(line, (kind_attribute,))
        if found is None:
            found = next((each.resource[kind_attribute] for each in line if kind_attribute in each.resource), None)
        return (str(found), "") if found is not None else ("", "")
    own = _first(line, (WORKFLOW,))
    kind, run = named(str(own)) if own is not None else ("", "")
    return (kind, run) if kind else (root.name if root is not None else "", "")


def _first(spans: Sequence[Span], names: Sequence[str]) -> Value | None:
    """The first of some attributes that the first of some spans has which has any."""
    return next((span.attributes[name] for span in spans for name in names if name in span.attributes), None)


def _count(value: Value | None) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 <= value < math.inf else None


def _start_s(span: Span) -> float:
    return span.start_s
