"""Counting in streams of events, however they are cut."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headway.serving.gateway.sse import EventStream, Usage, usage_in

TEXTS = st.lists(st.text(max_size=8), max_size=6)
LINE_ENDS = st.sampled_from(["\n", "\r\n"])


def stream(texts: list[str], end: str, usage: dict[str, object] | None) -> bytes:
    events: list[object] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    events += [{"choices": [{"delta": {"content": text}}], "usage": None} for text in texts]
    if usage is not None:
        events.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}{end}{end}" for event in events]
    return "".join([*lines, f"data: [DONE]{end}{end}"]).encode()


@given(texts=TEXTS, end=LINE_ENDS, counted=st.booleans(), cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_nothing_depends_on_where_the_bytes_were_cut(
    texts: list[str], end: str, counted: bool, cuts: list[int]
) -> None:
    usage: dict[str, object] | None = {"prompt_tokens": 9, "completion_tokens": 4} if counted else None
    data = stream(texts, end, usage)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    events = EventStream()
    passed = []
    for at, to in pairwise(places):
        out = events.feed(data[at:to])
        assert out == b"" or out.endswith((b"\n\n", b"\r\n\r\n"))  # never half an event
        passed.append(out)
    assert b"".join(passed) + events.rest() == data
    first = next((number for number, text in enumerate(texts) if text), None)
    assert events.begun == (first is not None)
    assert events.tokens == (0 if first is None else len(texts) - first + counted)
    assert events.closed
    assert events.usage() == (Usage(9, 4, None) if counted else Usage())


def test_a_stream_without_its_mark_is_not_closed_whatever_its_text_says() -> None:
    events = EventStream()
    events.feed(b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n')
    assert events.begun
    assert not events.closed


def test_the_mark_without_a_blank_line_after_it_closes_too() -> None:
    events = EventStream()
    assert events.feed(b"data: [DONE]\n") == b""
    assert events.rest() == b"data: [DONE]\n"
    assert events.closed


def test_tools_reasoning_and_plain_text_are_output() -> None:
    for event in (
        {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]},
        {"choices": [{"delta": {"reasoning_content": "so"}}]},
        {"choices": [{"text": "a"}]},
        {"type": "response.output_text.delta", "delta": "a"},
    ):
        events = EventStream()
        events.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
        assert events.begun, event
    nothing: tuple[dict[str, object], ...] = (
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"text": ""}]},
        {"type": "response.created"},
        {},
    )
    for empty in nothing:
        events = EventStream()
        events.feed(b"data: " + json.dumps(empty).encode() + b"\n\n")
        assert not events.begun, empty


def test_usage_is_found_in_whole_answers_but_not_in_text() -> None:
    assert usage_in(b'{"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}, "x": 1}') == Usage(
        3, None, 2
    )
    said = json.dumps({"content": '"usage": {"prompt_tokens": 5}'}).encode()
    assert usage_in(said) == Usage()
    assert usage_in(b'{"usage": null}') == Usage()
    assert usage_in(b'{"usage": {"prompt_tokens": "many", "completion_tokens": -1}}') == Usage()
    assert usage_in(b'{"usage": {"prompt_tok') == Usage()
    assert usage_in(b'{"usage": {"prompt_tokens": 3}} {"usage": null}') == Usage(3)
