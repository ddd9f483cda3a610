"""OpenTelemetry spans as its SDK for Python prints them (`ReadableSpan.to_json`, `ConsoleSpanExporter`). Pure.

Objects one after the other, each on one line or on many. Times are ISO 8601 and ids have 0x in front, which is left out
here: OTLP has the same ids without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime

from headway.errors import UsageError
from headway.serving.workflows.spans import Span, Value

HINT = "what ConsoleSpanExporter writes, and nothing between"


def is_sdk_span(value: object) -> bool:
    """Whether it is one of these."""
    return isinstance(value, dict) and isinstance(value.get("context"), dict) and "start_time" in value


def read_sdk_spans(text: str, *, where: str) -> list[Span]:
    """The spans in a file's text, in its order. A last one that is only half there is left alone.

    Raises:
        UsageError: names `where`, the line where the object begins, and the field of what is wrong.
    """
    return [_span(value, place) for value, place in _objects(text, where)]


def _objects(text: str, where: str) -> Iterator[tuple[object, str]]:
    decoder = json.JSONDecoder()
    at, line, counted = 0, 1, 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return
        line += text.count("\n", counted, at)
        counted = at
        place = f"{where}:{line}"
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            ended = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
            if ended and counted > 0:
                return
            raise UsageError(f"not JSON: {error.msg} in line {error.lineno}", where=place, hint=HINT) from None
        except RecursionError:
            raise UsageError("not JSON that is nested as spans are", where=place, hint=HINT) from None
        for each in value if isinstance(value, list) else (value,):
            yield each, place


def _span(value: object, where: str) -> Span:
    context = _field(value, "context")
    resource = _field(value, "resource")
    attributes = _attributes(_field(value, "attributes"))
    return Span(
        trace=_id(_field(context, "trace_id"), "context.trace_id", where),
        id=_id(_field(context, "span_id"), "context.span_id", where),
        parent=_id(_field(value, "parent_id"), "parent_id", where) if _field(value, "parent_id") else "",
        name=str(_field(value, "name") or ""),
        start_s=_seconds(value, "start_time", where),
        end_s=_seconds(value, "end_time", where),
        attributes=attributes,
        resource=_attributes(_field(resource, "attributes")),
        failed=_field(_field(value, "status"), "status_code") == "ERROR" or "error.type" in attributes,
    )


def _attributes(value: object) -> Mapping[str, Value]:
    if not isinstance(value, dict):
        return {}
    return {str(name): each for name, each in value.items() if isinstance(each, str | bool | int | float)}


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _id(value: object, name: str, where: str) -> str:
    if not isinstance(value, str) or not value.removeprefix("0x"):
        raise UsageError(f"{name} is {_shown(value)}, not text", where=where, hint=HINT)
    return value.removeprefix("0x")


def _seconds(value: object, name: str, where: str) -> float:
    found = _field(value, name)
    try:
        at = datetime.fromisoformat(str(found).replace("Z", "+00:00"))
        if at.tzinfo is not None:
            return at.timestamp()
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"{name} is {_shown(found)}, not a time in UTC", where=where, hint=HINT)


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]
