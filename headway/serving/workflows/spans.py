"""OpenTelemetry spans from OTLP JSON: one object, or one on each line as the Collector's file exporter writes. Pure.

Only what calls of workflows need is kept. 64-bit numbers may be text, as OTLP has them; ids are taken as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway.errors import UsageError

HINT = "OTLP JSON: an object with resourceSpans, or one on each line"
Value = str | bool | int | float
_ERROR_CODES = (2, "STATUS_CODE_ERROR")


@dataclass(frozen=True, slots=True)
class Span:
    """A span.

    Attributes:
        trace, id: of the trace and of the span in it.
        parent: id of its parent; empty: it has none.
        name: as it was given.
        start_s, end_s: wall clock, seconds since the epoch.
        attributes: those that are text, numbers or truth values.
        resource: the same of what sent it.
        failed: whether its status is an error.
    """

    trace: str
    id: str
    parent: str
    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Value]
    resource: Mapping[str, Value]
    failed: bool


def read_spans(text: str, *, where: str) -> list[Span]:
    """The spans in a file's text, in its order.

    Raises:
        UsageError: names `where`, the line (of a file of lines) and the field of what is wrong.
    """
    return [span for value, place in _objects(text, where) for span in _spans(value, place)]


def _objects(text: str, where: str) -> Iterator[tuple[object, str]]:
    """Each object with where it is: the whole text, or its lines."""
    try:
        whole: object = json.loads(text)
    except (ValueError, RecursionError):
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                place = f"{where}:{number}"
                try:
                    value: object = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UsageError(f"not JSON: {error}", where=place, hint=HINT) from None
                yield value, place
    else:
        for value in whole if isinstance(whole, list) else (whole,):
            yield value, where


def _spans(value: object, where: str) -> Iterator[Span]:
    for each, path in _listed(value, "resourceSpans", "", where):
        resource = _attributes(_field(each, "resource") or {}, f"{path}.resource", where)
        # Before OTLP 0.15 a scope was an instrumentation library.
        scopes = "scopeSpans" if isinstance(_field(each, "scopeSpans"), list) else "instrumentationLibrarySpans"
        if _field(each, scopes) is None:
            continue
        for scope, scope_path in _listed(each, scopes, path, where):
            if _field(scope, "spans") is not None:
                for span, span_path in _listed(scope, "spans", scope_path, where):
                    yield _span(span, span_path, where, resource)


def _span(value: object, path: str, where: str, resource: Mapping[str, Value]) -> Span:
    start_s, end_s = (_seconds(value, name, path, where) for name in ("startTimeUnixNano", "endTimeUnixNano"))
    attributes = _attributes(value, path, where)
    return Span(
        trace=_text(value, "traceId", path, where),
        id=_text(value, "spanId", path, where),
        parent=str(_field(value, "parentSpanId") or ""),
        name=str(_field(value, "name") or ""),
        start_s=start_s,
        end_s=end_s,
        attributes=attributes,
        resource=resource,
        failed=_field(_field(value, "status"), "code") in _ERROR_CODES or "error.type" in attributes,
    )


def _attributes(value: object, path: str, where: str) -> dict[str, Value]:
    if _field(value, "attributes") is None:
        return {}
    result: dict[str, Value] = {}
    for each, each_path in _listed(value, "attributes", path, where):
        found = _value(_field(each, "value"))
        if found is not None:
            result[_text(each, "key", each_path, where)] = found
    return result


def _value(value: object) -> Value | None:
    """Of an OTLP AnyValue; None: a list, an object, bytes, or nothing."""
    for name, kind in (("stringValue", str), ("boolValue", bool), ("doubleValue", float), ("intValue", int)):
        found = _field(value, name)
        if found is None:
            continue
        try:
            return kind(found) if isinstance(found, str | bool | int | float) else None
        except (ValueError, OverflowError):
            return None
    return None


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _listed(value: object, name: str, path: str, where: str) -> list[tuple[object, str]]:
    """The entries of a list, each with its path."""
    found = _field(value, name)
    path = f"{path}.{name}" if path else name
    if not isinstance(found, list):
        raise UsageError(f"{path} is {_shown(found)}, not a list", where=where, hint=HINT)
    return [(each, f"{path}[{number}]") for number, each in enumerate(found)]


def _text(value: object, name: str, path: str, where: str) -> str:
    found = _field(value, name)
    if not isinstance(found, str) or not found:
        raise UsageError(f"{path}.{name} is {_shown(found)}, not text", where=where, hint=HINT)
    return found


def _seconds(value: object, name: str, path: str, where: str) -> float:
    found = _field(value, name)
    try:
        if isinstance(found, str | int) and not isinstance(found, bool):
            whole_s, rest_ns = divmod(int(found), 10**9)
            return whole_s + rest_ns / 1e9  # as exact as a float of this size can be
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"{path}.{name} is {_shown(found)}, not a number of nanoseconds", where=where, hint=HINT)


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]
