"""Bodies that the engine sends, in the OpenAI API's words. Pure.

The answer's text is "w1 w2 w3 ...": one word per token, numbered, so that whoever reads it can check its order and its
length, and so that it counts as many tokens when it comes back in the next prompt.
"""

from __future__ import annotations

import base64
import hashlib
import json
from array import array
from collections.abc import Sequence
from typing import Any

from headway.serving.enginehttp.asked import Asked
from headway.serving.enginehttp.prompt import Prompt

DONE = b"data: [DONE]\n\n"
DIMENSIONS = 384
"""Of a vector where the client asks for no other size: that of all-MiniLM-L6-v2, as common as any."""


def usage(input_tokens: int, output_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """OpenAI's `usage`; `cached_tokens` where vLLM has it under --enable-prompt-tokens-details."""
    return {
        "prompt_tokens": input_tokens,
        "total_tokens": input_tokens + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def whole(
    asked: Asked, answer_id: str, model: str, created_s: int, output_tokens: int, cached_tokens: int, reason: str
) -> dict[str, Any]:
    """An answer that is not streamed."""
    text = " ".join(f"w{number}" for number in range(1, output_tokens + 1))
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
    choice |= {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
    return {
        "id": answer_id,
        "object": "chat.completion" if asked.chat else "text_completion",
        "created": created_s,
        "model": model,
        "choices": [choice],
        "usage": usage(asked.prompt.tokens, output_tokens, cached_tokens),
    }


class Chunks:
    """The chunks of one streamed answer, as server-sent events.

    All but the token's word is made once per answer: a token costs one join of three pieces of bytes.
    """

    __slots__ = ("_after", "_asked", "_before", "_frame", "_reason")

    def __init__(self, asked: Asked, answer_id: str, model: str, created_s: int, reason: str) -> None:
        self._asked = asked
        self._reason = reason
        self._frame = {
            "id": answer_id,
            "object": "chat.completion.chunk" if asked.chat else "text_completion",
            "created": created_s,
            "model": model,
        }
        before, _, after = self._event([self._choice("\0", None)]).partition(b"\\u0000")
        self._before, self._after = before, after

    def first(self) -> bytes:
        """What comes with the first token: a chat names the role."""
        if not self._asked.chat:
            return b""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return self._event([choice])

    def token(self, number: int) -> bytes:
        """One token that is not the last."""
        return b"%sw%d%s" % (self._before if number == 1 else self._before + b" ", number, self._after)

    def last(self, number: int, cached_tokens: int) -> bytes:
        """The last token, and the end of the stream."""
        text = f" w{number}" if number > 1 else "w1"
        events = self._event([self._choice(text, self._reason)])
        if self._asked.include_usage:
            events += self._event([], usage(self._asked.prompt.tokens, number, cached_tokens))
        return events + DONE

    def _choice(self, text: str, reason: str | None) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": {"content": text}} if self._asked.chat else {"text": text}
        return {"index": 0, **said, "logprobs": None, "finish_reason": reason}

    def _event(self, choices: Sequence[dict[str, Any]], used: dict[str, Any] | None = None) -> bytes:
        body: dict[str, Any] = self._frame | {"choices": choices}
        if used is not None:
            body["usage"] = used
        return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def embeddings(prompts: Sequence[Prompt], model: str, dimensions: int, as_base64: bool) -> dict[str, Any]:
    """A vector per prompt, of length 1, which only the prompt's tokens decide."""
    data = [
        {"object": "embedding", "index": number, "embedding": _encoded(_vector(prompt, dimensions), as_base64)}
        for number, prompt in enumerate(prompts)
    ]
    tokens = sum(prompt.tokens for prompt in prompts)
    return {
        "object": "list",
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _vector(prompt: Prompt, dimensions: int) -> list[float]:
    seed = f"{prompt.tokens} {prompt.blocks[-1]}".encode()
    values = array("h", hashlib.shake_128(seed).digest(2 * dimensions))
    length = sum(float(value) ** 2 for value in values) ** 0.5 or 1.0
    return [value / length for value in values]


def _encoded(vector: list[float], as_base64: bool) -> list[float] | str:
    return base64.b64encode(array("f", vector).tobytes()).decode() if as_base64 else vector
