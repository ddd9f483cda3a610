"""Bodies of the OpenAI API as the engine understands them. Pure.

Fields that change neither the lengths nor the order of anything (temperature, stop, tools, ...) are taken and ignored,
as there is no text to sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.serving.enginehttp import prompt as prompts
from headway.serving.enginehttp.prompt import Prompt


class ApiError(Exception):
    """A request that is answered with an error, in OpenAI's shape.

    Args:
        status: of HTTP.
        message: for people.
        param: the field that is wrong, or None.
        code: OpenAI's word for it, or None.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """What is sent."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True)
class Asked:
    """A call for text.

    Attributes:
        chat: whether of a chat; else a completion.
        model: as the client wrote it; empty where it wrote none.
        prompt: what to prefill.
        output_tokens: how many the client wants; None where it set no limit.
        stream: whether token by token.
        include_usage: whether a stream ends with a chunk that tells the usage.
        priority: as vLLM's: lower goes first.
    """

    chat: bool
    model: str
    prompt: Prompt
    output_tokens: int | None
    stream: bool
    include_usage: bool
    priority: int


@dataclass(frozen=True, slots=True)
class AskedEmbeddings:
    """A call for vectors.

    Attributes:
        model: as the client wrote it; empty where it wrote none.
        prompts: one per vector.
        as_base64: little-endian floats of 32 bits in base64; else a list of numbers.
        dimensions: of each vector; None where the client did not say.
    """

    model: str
    prompts: tuple[Prompt, ...]
    as_base64: bool
    dimensions: int | None


def chat(body: Any, block_tokens: int) -> Asked:
    """Of `/v1/chat/completions`. ApiError names the field that is wrong."""
    fields = _object(body)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages is not a list with at least one message", param="messages")
    said = [_message(number, message) for number, message in enumerate(messages)]
    return _text(fields, prompts.of_chat(said, block_tokens), chat=True)


def completion(body: Any, block_tokens: int) -> Asked:
    """Of `/v1/completions`: one prompt, text or token ids. ApiError names the field that is wrong."""
    fields = _object(body)
    several = _prompts(fields, "prompt", block_tokens)
    if len(several) > 1:
        raise ApiError(400, "only one prompt per request is supported", param="prompt")
    return _text(fields, several[0], chat=False)


def embeddings(body: Any, block_tokens: int) -> AskedEmbeddings:
    """Of `/v1/embeddings`. ApiError names the field that is wrong."""
    fields = _object(body)
    encoding = fields.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise ApiError(400, "encoding_format is neither float nor base64", param="encoding_format")
    return AskedEmbeddings(
        model=_model(fields),
        prompts=tuple(_prompts(fields, "input", block_tokens)),
        as_base64=encoding == "base64",
        dimensions=_whole(fields, "dimensions", least=1),
    )


def _text(fields: Mapping[str, Any], prompt: Prompt, *, chat: bool) -> Asked:
    wanted = _whole(fields, "max_tokens", least=1)
    if chat and fields.get("max_completion_tokens") is not None:
        wanted = _whole(fields, "max_completion_tokens", least=1)
    if fields.get("n") not in (None, 1):
        raise ApiError(400, "only n = 1 is supported", param="n")
    stream = _flag(fields, "stream")
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError(400, "stream_options is no object", param="stream_options")
    if options is not None and not stream:
        raise ApiError(400, "stream_options needs stream", param="stream_options")
    return Asked(
        chat=chat,
        model=_model(fields),
        prompt=prompt,
        output_tokens=wanted,
        stream=stream,
        include_usage=_flag(options or {}, "include_usage"),
        priority=_whole(fields, "priority") or 0,
    )


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ApiError(400, "the body is no JSON object")
    return body


def _model(fields: Mapping[str, Any]) -> str:
    model = fields.get("model") or ""
    if not isinstance(model, str):
        raise ApiError(400, "model is no text", param="model")
    return model


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} is neither true nor false", param=name)
    return bool(value)


def _whole(fields: Mapping[str, Any], name: str, *, least: int | None = None) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or (least is not None and value < least):
        limit = "" if least is None else f" of at least {least}"
        raise ApiError(400, f"{name} is no whole number{limit}", param=name)
    return value


def _message(number: int, message: Any) -> tuple[str, str]:
    where = f"messages.{number}"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ApiError(400, f"{where} is no object with a role", param=where)
    content = message.get("content")
    if content is None:
        return message["role"], ""
    if isinstance(content, str):
        return message["role"], content
    if not isinstance(content, list):
        raise ApiError(400, f"{where}.content is neither text nor a list of parts", param=where)
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f"{where}.content has a part that is no text", param=where)
        parts.append(part["text"])
    return message["role"], "\n".join(parts)


def _prompts(fields: Mapping[str, Any], name: str, block_tokens: int) -> list[Prompt]:
    """A text, a list of texts, a list of ids, or a list of such lists."""
    value = fields.get(name)
    if isinstance(value, str):
        return [prompts.of_text(value, block_tokens)]
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value):
            return [prompts.of_text(each, block_tokens) for each in value]
        lists = value if all(isinstance(each, list) for each in value) else [value]
        if all(each and all(type(one) is int and 0 <= one < 2**63 for one in each) for each in lists):
            return [prompts.of_ids(each, block_tokens) for each in lists]
    raise ApiError(400, f"{name} is neither text nor token ids, nor a list of them", param=name)
