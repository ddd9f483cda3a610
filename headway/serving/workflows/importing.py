"""Calls of workflows from files of several kinds, told apart by what is in them. Pure: texts in, calls out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from headway.decide.journal import parse_lines
from headway.errors import UsageError
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import KIND, read_calls
from headway.serving.workflows.otel import TWICE, Imported, calls_of
from headway.serving.workflows.record import distinct, from_journal, left_out
from headway.serving.workflows.sdk_spans import is_sdk_span, read_sdk_spans
from headway.serving.workflows.spans import Span, read_spans

_LONGEST_WORD = len("false")
"""A decoder finds fault with the beginning of a word that is cut (characters)."""


class Format(Enum):
    """What a file may hold."""

    JOURNAL = "a gateway's journal"
    SPANS = "OpenTelemetry spans"
    SDK_SPANS = "OpenTelemetry spans as the SDK prints them"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class Source:
    """A file: how errors name it, and its text."""

    where: str
    text: str


def import_calls(sources: Sequence[Source], *, kind_attribute: str = "") -> Imported:
    """The calls in all files together, in order of their starts; of one that several files have, one.

    Args:
        sources: the files; a trace's spans may be in several.
        kind_attribute: for spans, as in `otel.calls_of`.

    Raises:
        UsageError: a file is of no known kind, or something in it is wrong.
    """
    spans: list[Span] = []
    calls: list[Call] = []
    reasons: Counter[str] = Counter()
    for source in sources:
        match format_of(source):
            case Format.SPANS:
                spans += read_spans(_whole(source.text), where=source.where)
            case Format.SDK_SPANS:
                spans += read_sdk_spans(source.text, where=source.where)
            case Format.CALLS:
                calls += read_calls(_whole(source.text).split("\n"), where=source.where)
            case Format.JOURNAL:
                records = list(parse_lines(_whole(source.text).split("\n"), where=source.where))
                calls += from_journal(records)
                reasons.update(left_out(records))
    traced = calls_of(spans, kind_attribute=kind_attribute)
    reasons.update(traced.left_out)
    together = dict.fromkeys(sorted((*calls, *traced.calls), key=lambda call: (call.start_s, call.end_s)))
    reasons[TWICE] += len(calls) + len(traced.calls) - len(together)
    return Imported(
        tuple(distinct(together)), {why: count for why, count in reasons.items() if count}, traced.no_tokens
    )


def format_of(source: Source) -> Format:
    """What a file holds. UsageError where it is nothing known."""
    text = source.text.strip()
    if not text:
        raise UsageError("is empty", where=source.where, hint="its writer has recorded nothing yet, or elsewhere")
    value = _beginning(text)
    if value is None and _ends_in_the_middle(text):
        raise UsageError("ends in the middle", where=source.where, hint="its writer has not finished it: copy it again")
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        if "resourceSpans" in value:
            return Format.SPANS
        if is_sdk_span(value):
            return Format.SDK_SPANS
        if "v" in value and "kind" in value:
            return Format.CALLS if value["kind"] == KIND else Format.JOURNAL
    raise UsageError(
        "is neither a gateway's journal nor OpenTelemetry spans nor calls",
        where=source.where,
        hint="spans are taken as OTLP JSON, as the Collector's file exporter writes them, or as the SDK prints them",
    )


def _beginning(text: str) -> object:
    """The first value in it, of one line or of many; None where that is no JSON."""
    try:
        value: object = json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
    return value


def _ends_in_the_middle(text: str) -> bool:
    """Whether it begins as JSON and breaks off: what is wrong is its end, or a string that has none."""
    try:
        json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text) - _LONGEST_WORD or error.msg.startswith("Unterminated string")
        return text[0] in "{[" and at_end
    except RecursionError:
        pass
    return False


def _whole(text: str) -> str:
    """Without a last line that its writer has not finished."""
    lines, newline, last = text.rstrip().rpartition("\n")
    unfinished = newline and last.startswith("{") and not last.endswith("}") and not text.endswith("\n")
    return lines if unfinished else text
