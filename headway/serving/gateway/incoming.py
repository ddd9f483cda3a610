"""A client's call: its body read once, its headers checked. Raises AnswerError for what can't be answered."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from urllib.parse import unquote

from headway.serving.gateway.answers import AnswerError
from headway.serving.gateway.prompt import (
    BYTES_PER_TOKEN,
    Prompt,
    PromptError,
    TokenRatio,
    chat_prompt,
    rerank_prompt,
    text_prompt,
)
from headway.serving.request import Request

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
DONE_PATHS = frozenset((CHAT, COMPLETIONS))
"""Whose streams end with `data: [DONE]`."""
CALLS = frozenset((CHAT, COMPLETIONS, EMBEDDINGS, "/v1/rerank"))
"""Whose bodies are understood, and must name a model; all others are the engine's business."""
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NAME_LIMIT = 256
_PROMPTS = ("instructions", "tools", "prompt", "messages", "input", "query", "documents")


@dataclass(frozen=True, slots=True)
class Call:
    """One call to a model.

    Attributes:
        request: as routing sees it.
        prompt: what its length was estimated from.
        streams: whether the client asked for a stream.
        body: as it goes to the engine.
        asks_usage: whether `body` was changed to ask for the token counts.
    """

    request: Request
    prompt: Prompt
    streams: bool
    body: bytes
    asks_usage: bool = False

    def of_model(self, model: str) -> Call:
        """The same of a model that the client did not name."""
        return replace(self, request=replace(self.request, model=model))

    def named(self, request_id: str) -> Call:
        """The same under another name."""
        return replace(self, request=replace(self.request, id=request_id))

    def of_workflow(self, workflow: str) -> Call:
        """The same as a step of this workflow."""
        if workflow == self.request.workflow:
            return self
        return replace(self, request=replace(self.request, workflow=workflow))

    def with_body(self, body: bytes) -> Call:
        """The same with the client's own body."""
        return replace(self, body=body, asks_usage=False)


class Ids:
    """Names for requests: the client's `x-request-id` where it is usable and not in use, else one of ours.

    Args:
        prefix: tells two gateways apart.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers = count(1)

    def new(self, wanted: str, in_use: Mapping[str, object]) -> str:
        """A name that isn't in use."""
        if not wanted or _ID.fullmatch(wanted) is None:
            return f"{self._prefix}-{next(self._numbers)}"
        return wanted if wanted not in in_use else f"{wanted}~{next(self._numbers)}"


def check_path(path: str) -> None:
    """AnswerError 404 for a path that leaves /v1/, written plainly or encoded: engines have pages not for clients."""
    parts = re.split(r"[/\\]", unquote(unquote(path)))
    if ".." in parts or "." in parts:
        raise AnswerError(404, "there is no such path", code="unknown_path")


def parse_call(
    path: str, body: bytes, headers: Mapping[str, str], *, request_id: str, ratios: TokenRatio, ask_usage: bool = False
) -> Call:
    """The call in `body` to `path`.

    Args:
        path: of the API, e.g. /v1/chat/completions.
        body: as the client sent it.
        headers: the client's; found whatever the case of their names.
        request_id: its name.
        ratios: to estimate the prompt's length.
        ask_usage: whether a stream's engine is asked for its token counts, which changes the body.

    Raises:
        AnswerError: 400, which names the field or header.
    """
    fields = _object(body)
    model = fields.get("model", "" if path not in CALLS else None)
    if not isinstance(model, str) or len(model) > _NAME_LIMIT or (not model and path in CALLS):
        raise _bad("model must be the name of a model", "model")
    model = _name(model)
    streams = fields.get("stream")
    if streams is not None and not isinstance(streams, bool):
        raise _bad("stream must be true or false", "stream")
    try:
        prompt = _prompt(path, fields)
    except PromptError as error:
        raise _bad(str(error), error.param) from None
    tokens, block_tokens = ratios.lengths(prompt, model)
    request = Request(
        id=request_id,
        model=model,
        input_tokens=tokens,
        blocks=prompt.blocks(model),
        block_tokens=block_tokens,
        most_output_tokens=_most_output(fields),
        session=_session(fields, headers),
        slo_ttft_s=_milliseconds(headers, "x-slo-ttft-ms"),
        slo_tpot_s=_milliseconds(headers, "x-slo-tpot-ms"),
        workflow=_name(headers.get("x-headway-workflow", "")),
    )
    asking = _asking(fields) if ask_usage and streams and path in DONE_PATHS else None
    return Call(request, prompt, bool(streams), asking or body, asks_usage=asking is not None)


def raw_call(model: str, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Call:
    """A call whose body is not JSON, or that has none. AnswerError 400 for a header."""
    request = Request(
        id=request_id,
        model=_name(model),
        input_tokens=max(1, round(len(body) / BYTES_PER_TOKEN)),
        session=_name(headers.get("x-session-id", "")),
        slo_ttft_s=_milliseconds(headers, "x-slo-ttft-ms"),
        slo_tpot_s=_milliseconds(headers, "x-slo-tpot-ms"),
        workflow=_name(headers.get("x-headway-workflow", "")),
    )
    return Call(request, Prompt(row=b""), False, body)


def _object(body: bytes) -> dict[str, object]:
    try:
        fields: object = json.loads(body)
    except RecursionError:
        raise _bad("the body is nested too deeply", None, code="invalid_json") from None
    except ValueError as error:
        raise _bad(f"the body is not JSON: {error}", None, code="invalid_json") from None
    if not isinstance(fields, dict):
        raise _bad("the body must be a JSON object", None, code="invalid_json")
    return fields


def _prompt(path: str, fields: Mapping[str, object]) -> Prompt:
    if path == CHAT:
        return chat_prompt(fields)
    if path.endswith("/rerank"):
        return rerank_prompt(fields)
    if path == COMPLETIONS:
        return text_prompt(fields.get("prompt"), "prompt")
    if path == EMBEDDINGS:
        return text_prompt(fields.get("input"), "input")
    # Of paths whose form is the engine's business (/v1/responses) it is enough that equal beginnings are equal.
    return Prompt(row="".join(json.dumps(fields[name]) for name in _PROMPTS if fields.get(name)).encode())


def _most_output(fields: Mapping[str, object]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a number of JSON has no kind: 8.0 is 8
        if not isinstance(value, int) or isinstance(value, bool):
            raise _bad(f"{name} must be a whole number", name)
        return value
    return None


def _session(fields: Mapping[str, object], headers: Mapping[str, str]) -> str:
    named = headers.get("x-session-id", "")
    if not named:
        user = fields.get("user")
        named = user if isinstance(user, str) else ""
    return _name(named)


def _name(text: str) -> str:
    """A client's word as journals and traces can hold it: a byte or half of a character that is no UTF-8 is a `?`."""
    text = text[:_NAME_LIMIT]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _milliseconds(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise _bad(f"{name} must be a number of milliseconds above 0, not {text[:40]!r}", name)
    return value / 1000


def _asking(fields: dict[str, object]) -> bytes | None:
    """The body with usage asked for; None where the client said something of it."""
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise _bad("stream_options must be an object", "stream_options")
    if options is not None and "include_usage" in options:
        return None
    return json.dumps({**fields, "stream_options": {**(options or {}), "include_usage": True}}).encode()


def _bad(message: str, param: str | None, *, code: str = "invalid_value") -> AnswerError:
    return AnswerError(400, message, code=code, param=param)
