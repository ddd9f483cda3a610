"""Reads the stream of an answer, chunk by chunk, into a row. Pure: the time is passed in.

It shares nothing with the gateway's reader: what measures must not have the faults of what is measured.
"""

from __future__ import annotations

import json

from headway.serving.loadgen.row import Row

MOST_EVENT_BYTES = 4 * 2**20
"""A longer event is taken for garbage."""


MOST_TOKENS = 2**40
"""A larger count is taken for none."""
OUTPUT = ("content", "reasoning_content", "reasoning", "tool_calls")
"""Fields of a chat's delta that are output; an empty one, as in the first event, is none."""


class BrokenAnswerError(Exception):
    """The stream is no good.

    Attributes:
        kind: as `Row.end`: error (the server says so in the stream), garbage.
    """

    def __init__(self, kind: str, what: str) -> None:
        self.kind = kind
        super().__init__(what)


class Answer:
    """Server-sent events of one answer.

    Args:
        row: where times and counts go.
        sent_s: when the request was sent, on the clock of `feed`.

    Attributes:
        complete: the closing mark has come, or a finish reason.
    """

    __slots__ = ("_held", "_last_s", "_row", "_sent_s", "complete")

    def __init__(self, row: Row, sent_s: float) -> None:
        self._row, self._sent_s = row, sent_s
        self._held = b""
        self._last_s = 0.0
        self.complete = False

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Take in bytes that came at `now_s`. Raises BrokenAnswerError."""
        lines = (self._held + chunk).split(b"\n")
        self._held = lines.pop()
        if len(self._held) > MOST_EVENT_BYTES:
            raise BrokenAnswerError("garbage", f"a line of more than {MOST_EVENT_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def _event(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.complete = True
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise BrokenAnswerError("garbage", f"an event that is not JSON: {data[:60]!r}") from None
        if not isinstance(event, dict):
            raise BrokenAnswerError("garbage", f"an event that is no object: {data[:60]!r}")
        if event.get("error"):
            raise BrokenAnswerError("error", f"the server broke off: {_message(event['error'])}")
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            if choice.get("text") or (isinstance(delta, dict) and any(delta.get(name) for name in OUTPUT)):
                self._token(now_s)
            if choice.get("finish_reason"):
                self.complete = True
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage(usage)

    def _token(self, now_s: float) -> None:
        row = self._row
        if row.ttft_s is None:
            row.ttft_s = now_s - self._sent_s
        else:
            row.gaps_s.append(now_s - self._last_s)
        self._last_s = now_s
        row.last_s = now_s - self._sent_s

    def _usage(self, usage: dict[str, object]) -> None:
        row = self._row
        row.prompt_tokens = _count(usage.get("prompt_tokens"))
        row.completion_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        row.cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS else None


def _message(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]
