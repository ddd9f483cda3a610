"""From the body of a call to what routing needs of its prompt: chained hashes of its blocks, and how long it is. Pure.

The prompt is laid out as one row of bytes that begins alike for two calls whose prompts begin alike once the engine has
put them through its chat template: tools first, then the messages in order. It is cut into blocks of BLOCK_BYTES; each
hash is over all bytes up to its block's end, and over the model's name, because a prefix is worth nothing to another
model. Parts that aren't text (images, sound) stand in the row by their own hash.

Cost: 0.25 ms for 100 KB (one core, 2.5 GHz Xeon): BLAKE2b at 400 MB/s, one digest a block.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

BLOCK_BYTES = 256
"""About 64 tokens of English: four blocks of vLLM's cache. Shorter ones cost more hashing, and gain nothing: what
decides are prefixes of hundreds of tokens."""
BYTES_PER_TOKEN = 4.0
"""Of a model that has not yet told us: English in the vocabularies of 128,000 tokens has 4 to 4.5."""
ID_BYTES = 4
"""A prompt of token ids is laid out with this many bytes for each, so its length is exact."""
MEDIA_TOKENS = 576
"""Of an image or another part that isn't text: LLaVA-1.5's 24 x 24 patches; others range from 64 to 2,000."""
HASHED_BYTES = 2**20
"""Of a prompt: some 250,000 tokens. Two that agree so far are equal to routing."""
_FORGET = 0.05
_FEWEST_BYTES = 64


class PromptError(ValueError):
    """A prompt has a form that no engine takes.

    Args:
        param: field of the body.
        what: what it must be.
    """

    def __init__(self, param: str, what: str) -> None:
        self.param = param
        super().__init__(f"{param} {what}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a row of bytes.

    Attributes:
        row: the bytes.
        ids: how many tokens it has, where the client sent token ids; else None.
        media: parts that aren't text (count).
    """

    row: bytes
    ids: int | None = None
    media: int = 0

    def blocks(self, model: str) -> tuple[int, ...]:
        """One 64-bit hash for each block of the first HASHED_BYTES; the last block may be a part of one."""
        row, digest = self.row, blake2b(model.encode("utf-8", "surrogatepass"), digest_size=8)
        hashes = []
        for start in range(0, min(len(row), HASHED_BYTES), BLOCK_BYTES):
            digest.update(row[start : start + BLOCK_BYTES])
            hashes.append(int.from_bytes(digest.copy().digest(), "little"))
        return tuple(hashes)


class TokenRatio:
    """Bytes of a prompt's row per token, for each model, learned from the counts in engines' answers.

    A mean that forgets: each answer weighs 5 %, so that it follows a change of language within some 50 requests.
    """

    def __init__(self) -> None:
        self._ratio: dict[str, float] = {}

    def bytes_per_token(self, model: str) -> float:
        """The model's ratio, or BYTES_PER_TOKEN where nothing is known."""
        return self._ratio.get(model, BYTES_PER_TOKEN)

    def lengths(self, prompt: Prompt, model: str) -> tuple[int, int]:
        """Tokens of the prompt, at least 1, and tokens of a block."""
        if prompt.ids is not None:
            return max(1, prompt.ids), BLOCK_BYTES // ID_BYTES
        ratio = self.bytes_per_token(model)
        tokens = round(len(prompt.row) / ratio) + MEDIA_TOKENS * prompt.media
        return max(1, tokens), max(1, round(BLOCK_BYTES / ratio))

    def learn(self, prompt: Prompt, model: str, tokens: int) -> None:
        """An engine counted `tokens` in this prompt. Short ones, token ids and media teach nothing of text."""
        if prompt.ids is not None or prompt.media or tokens < 1 or len(prompt.row) < _FEWEST_BYTES:
            return
        seen = min(max(len(prompt.row) / tokens, 0.5), 64.0)  # a nonsense count must not ruin the estimate
        known = self._ratio.get(model)
        self._ratio[model] = seen if known is None else known + _FORGET * (seen - known)


def chat_prompt(body: Mapping[str, object]) -> Prompt:
    """The prompt of /v1/chat/completions. PromptError where `messages` is no list of messages."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise PromptError("messages", "must be a list of at least one message")
    parts: list[str] = []
    media = 0
    tools = body.get("tools")
    if tools:
        parts.append(json.dumps(tools))
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise PromptError(f"messages[{number}]", "must be an object with a role")
        parts += ("\x02", message["role"], "\x03")
        content = message.get("content")
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, list):
            for text in _content(content, f"messages[{number}].content"):
                parts.append(text)
                media += text.startswith("\x04")
        elif content is not None:
            raise PromptError(f"messages[{number}].content", "must be text or a list of parts")
        if message.get("tool_calls"):
            parts.append(json.dumps(message["tool_calls"]))
    return Prompt(row="".join(parts).encode("utf-8", "surrogatepass"), media=media)


def text_prompt(value: object, param: str) -> Prompt:
    """The prompt of /v1/completions or the input of /v1/embeddings: text, texts, token ids, or lists of token ids."""
    if isinstance(value, str):
        return Prompt(row=value.encode("utf-8", "surrogatepass"))
    if not isinstance(value, list) or not value:
        raise PromptError(param, "must be text, token ids, or a list of these that isn't empty")
    if all(isinstance(each, str) for each in value):
        return Prompt(row="\x02".join(value).encode("utf-8", "surrogatepass"))
    if isinstance(value[0], list):
        rows = [_ids(each, param) for each in value]
        return Prompt(row=b"".join(rows), ids=sum(map(len, rows)) // ID_BYTES)
    row = _ids(value, param)
    return Prompt(row=row, ids=len(row) // ID_BYTES)


def rerank_prompt(body: Mapping[str, object]) -> Prompt:
    """The query and documents of /v1/rerank."""
    query, documents = body.get("query"), body.get("documents")
    if not isinstance(query, str):
        raise PromptError("query", "must be text")
    if not isinstance(documents, list) or not documents:
        raise PromptError("documents", "must be a list that isn't empty")
    texts = [each if isinstance(each, str) else json.dumps(each) for each in documents]
    return Prompt(row="\x02".join([query, *texts]).encode("utf-8", "surrogatepass"))


def _content(parts: Sequence[object], where: str) -> Iterator[str]:
    """Each part as text; one that isn't text as a mark and its hash."""
    for number, part in enumerate(parts):
        if isinstance(part, str):
            yield part
        elif not isinstance(part, dict):
            raise PromptError(f"{where}[{number}]", "must be an object with a type")
        elif isinstance(part.get("text"), str):
            yield part["text"]
        else:
            whole = json.dumps(part).encode()
            yield "\x04" + blake2b(whole, digest_size=16).hexdigest()


def _ids(value: object, param: str) -> bytes:
    """Token ids as bytes."""
    try:
        if not isinstance(value, list):
            raise TypeError
        return array("I", value).tobytes()
    except (TypeError, OverflowError):
        raise PromptError(param, "must be text, token ids, or a list of these that isn't empty") from None
