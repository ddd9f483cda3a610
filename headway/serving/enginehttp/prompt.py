"""A prompt as the engine model sees it: how many tokens, and which blocks. Pure.

There is no vocabulary. One token is one word, where words are what white space separates; a message of a chat costs one
token more for its role, and a chat one more for the turn that is asked for. A prompt may also come as token ids.

Each block's hash covers all of the prompt up to the block's end, so two prompts share a prefix of exactly as many
blocks as their hashes agree in. Prompts of words and prompts of ids never share one.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """What there is to prefill.

    Attributes:
        tokens: at least 1.
        blocks: one chained 64-bit hash per block; the last one may be a part of a block.
    """

    tokens: int
    blocks: tuple[int, ...]


def of_text(text: str, block_tokens: int) -> Prompt:
    """A prompt of words. A text without any counts as one token, as an engine's begin-of-text token would."""
    return _of_words(text.split(), block_tokens)


def of_chat(messages: Iterable[tuple[str, str]], block_tokens: int) -> Prompt:
    """A chat: (role, content) of each message, in order."""
    words: list[str] = []
    for role, content in messages:
        words.append(f"<{role}>")
        words += content.split()
    words.append("<answer>")
    return _of_words(words, block_tokens)


def of_ids(ids: Sequence[int], block_tokens: int) -> Prompt:
    """A prompt of token ids, each of which fits 64 bits (else OverflowError)."""
    data = array("q", ids or (0,)).tobytes()
    size_bytes = 8 * block_tokens
    blocks = (data[at : at + size_bytes] for at in range(0, len(data), size_bytes))
    return Prompt(len(data) // 8, _chained(b"ids", blocks))


def _of_words(words: list[str], block_tokens: int) -> Prompt:
    words = words or [""]
    cut = (" ".join(words[at : at + block_tokens]) + "\n" for at in range(0, len(words), block_tokens))
    return Prompt(len(words), _chained(b"words", (block.encode("utf-8", "surrogatepass") for block in cut)))


def _chained(kind: bytes, blocks: Iterable[bytes]) -> tuple[int, ...]:
    so_far = hashlib.blake2b(kind, digest_size=8)
    hashes = []
    for block in blocks:
        so_far.update(block)
        hashes.append(int.from_bytes(so_far.digest(), "little"))
    return tuple(hashes)
