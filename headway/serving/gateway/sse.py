"""What the gateway reads in an engine's answer, at little cost: counts, the first token, the usage. Pure.

Most chunks of a stream are only counted and passed on. JSON is parsed until the first token has come, and of the usage
at the end nothing but that object.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass

MOST_HELD_BYTES = 4 * 2**20
"""Of an event that isn't complete yet; a longer one is passed on in parts."""
_LAST_CHUNKS = 16
_USAGE_BYTES = 4096
_USAGE = b'"usage"'
_OUTPUT = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio")
_ENDS = (b"\n\n", b"\r\n\r\n")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Usage:
    """What an engine says that a request took.

    Attributes:
        prompt_tokens, output_tokens: counts; None where it doesn't say.
        cached_tokens: of the prompt's, those from the prefix cache; None where it doesn't say.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


NOTHING = Usage()


def usage_in(text: bytes) -> Usage:
    """The last `usage` object in an answer, as OpenAI, vLLM, SGLang and llama.cpp write it.

    It is found as text: inside of a string of JSON the quotes of the word would be escaped. So an answer of a megabyte
    of embeddings costs a search from its end, not a parse.
    """
    at = text.rfind(_USAGE)
    while at >= 0:
        start = text.find(b"{", at)
        if start >= 0 and text[at + len(_USAGE) : start].strip() == b":":
            usage = _object(text[start : start + _USAGE_BYTES])
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached))
        at = text.rfind(_USAGE, 0, at)
    return NOTHING


def has_token(event: object) -> bool:
    """Whether an event carries output: not the first one of a chat, which only names the role."""
    if not isinstance(event, dict):
        return False
    choices = event.get("choices")
    if not isinstance(choices, list):
        return str(event.get("type")).endswith(".delta")  # of /v1/responses
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        if choice.get("text"):
            return True
        delta = choice.get("delta")
        if isinstance(delta, dict) and any(delta.get(name) for name in _OUTPUT):
            return True
    return False


class EventStream:
    """Cuts an engine's bytes into whole events and counts them.

    Attributes:
        tokens: events since the first one with output, without the closing mark: the count of output tokens where the
            engine says none. Too high by the events that carry none (finish reason, usage), and too low by the tokens
            that an engine puts together into one event.
        begun: an event with output has come.
        closed: `[DONE]` has come.
    """

    __slots__ = ("_held", "_last", "begun", "closed", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.begun = self.closed = False
        self._held = b""
        self._last: deque[bytes] = deque(maxlen=_LAST_CHUNKS)

    def feed(self, chunk: bytes) -> bytes:
        """Whole events that can be passed on, as they came: of a broken stream the client never gets half a one."""
        if self._held:
            chunk = self._held + chunk
            self._held = b""
        if not chunk.endswith(_ENDS):
            end = max(chunk.rfind(mark) + len(mark) if mark in chunk else 0 for mark in _ENDS)
            if len(chunk) - end <= MOST_HELD_BYTES:
                self._held, chunk = chunk[end:], chunk[:end]
            if not chunk:
                return chunk
        self._count(chunk)
        return chunk

    def rest(self) -> bytes:
        """What came after the last whole event, where the stream ended in good order."""
        held, self._held = self._held, b""
        if held:
            self._count(held)
        return held

    def usage(self) -> Usage:
        """The counts in the last event that has some."""
        return usage_in(b"".join(self._last))

    def _count(self, chunk: bytes) -> None:
        self._last.append(chunk)
        if self.begun:
            events = chunk.count(b"\ndata:") + chunk.startswith(b"data:")
        else:
            events = self._until_begun(chunk)
        if b"[DONE]" in chunk and chunk.rstrip().endswith((b"data: [DONE]", b"data:[DONE]")):
            self.closed = True
            events -= self.begun
        self.tokens += events

    def _until_begun(self, chunk: bytes) -> int:
        """Events from the first one with output on."""
        events = 0
        for line in chunk.split(b"\n"):
            if line.startswith(b"data:"):
                self.begun = self.begun or has_token(_object(line[5:].lstrip()))
                events += self.begun
        return events


def _object(text: bytes) -> dict[str, object]:
    """The JSON object that the text begins with; an empty one where there is none."""
    try:
        value, _ = _DECODER.raw_decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):  # not ours to judge: `[DONE]`, or an engine's garbage, which the client gets
        return {}
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
