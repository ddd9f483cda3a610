"""How long a request of a vLLM server may be, prompt and answer together: `--max-model-len`. Pure.

vLLM does not start where its KV cache holds fewer tokens than a request may have: as many as `--max-model-len` says, or
else the model's whole context. A small part of a GPU leaves such a cache to a model of a long context. So where the
cache is known to be smaller, the limit is said, as much as the cache holds; where the user says one, it is checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.serving.engine.hardware import BYTES_PER_VALUE, MEMORY_SHARE, RESERVE_BYTES, Model

OPTION = "--max-model-len"
ROUND_TOKENS = 256
"""A multiple of all block sizes that vLLM has, so that the limit is whole blocks whichever it takes."""
_FITTED = ("auto", "-1")
"""vLLM itself takes what its cache holds."""
_NUMBER = re.compile(r"(\d+)(?:(\.\d+)?([kmgt])|([KMGT]))?")
_POWERS = "kmgt"


@dataclass(frozen=True, slots=True)
class Longest:
    """Of a server's requests.

    Attributes:
        held_tokens: that its cache holds of one request, in whole blocks; None: not known.
        context_tokens: of the model, the longest of its checkpoints; None: not known.
        said_tokens: the limit that the server is told for the plan; None: none, or the user's own.
        asked: whether the user gave a limit, or left it to vLLM to fit one.
    """

    held_tokens: int | None
    context_tokens: int | None
    said_tokens: int | None
    asked: bool


def cache_bytes(net: Model, memory_bytes: int, tensor_parallel: int) -> int:
    """Of the cache on each GPU of a server that has so much of its memory; below 0: the weights have no room.

    Args:
        net: the server's model.
        memory_bytes: of each GPU.
        tensor_parallel: GPUs that share the model (count).
    """
    return int(memory_bytes * MEMORY_SHARE - net.parameters * BYTES_PER_VALUE / tensor_parallel - RESERVE_BYTES)


def longest(
    name: str, net: Model | None, room_bytes: int | None, tensor_parallel: int, arguments: Sequence[str]
) -> Longest:
    """What a server can take, and what it must be told.

    Args:
        name: of the server, for messages.
        net: its model; None: not known.
        room_bytes: of its cache on each GPU; None: not known.
        tensor_parallel: GPUs that share the model (count).
        arguments: the user's own.

    Raises:
        UsageError: the user's own limit is no number of tokens, or more than the cache holds.
    """
    text = _value(arguments, "max-model-len", shortest="max-model")
    asked_tokens = _tokens(text) if text is not None and text not in _FITTED else None
    held_tokens = None
    if net is not None and room_bytes is not None:
        held_tokens = _held(
            net, room_bytes, tensor_parallel, _value(arguments, "kv-cache-dtype", shortest="kv-cache-d")
        )
    if asked_tokens is not None and held_tokens is not None and 0 < held_tokens < asked_tokens:
        raise UsageError(
            f"{OPTION}={text} is more than the cache of {name} holds, {held_tokens} tokens",
            where="--arg",
            hint=f"say {held_tokens} or less, or plan with a larger part for {name}",
        )
    contexts = net.contexts_tokens if net is not None else ()
    said_tokens = None
    if text is None and held_tokens is not None and held_tokens < max(contexts):
        said_tokens = min(held_tokens, *contexts)  # a limit above its checkpoint's context is refused by vLLM, too
    return Longest(held_tokens, max(contexts, default=None), said_tokens, text is not None)


def _held(net: Model, room_bytes: int, tensor_parallel: int, kind: str | None) -> int | None:
    """Tokens of one request; None where the size of a cached value is not known."""
    if kind in (None, "auto", "bfloat16", "float16", "half"):
        value_bytes = BYTES_PER_VALUE
    elif kind.startswith("fp8"):
        value_bytes = 1
    else:
        return None
    heads = math.ceil(net.kv_heads / tensor_parallel)  # of each GPU; with more GPUs than heads they are kept twice
    tokens = room_bytes // (2 * net.layers * heads * net.head_size * value_bytes)
    return max(0, tokens // ROUND_TOKENS - 1) * ROUND_TOKENS  # vLLM keeps one block for itself


def _tokens(text: str) -> int:
    """As vLLM reads it: 8192, 8k and 1.5k (thousands), 8K (of 1024). UsageError where it is none, or 0."""
    match = _NUMBER.fullmatch(text)
    tokens = 0
    if match is not None:
        whole, part, decimal, binary = match.groups()
        if binary:
            tokens = int(whole) * 1024 ** (1 + _POWERS.index(binary.lower()))
        else:
            tokens = int(float(whole + (part or "")) * 1000 ** (1 + _POWERS.index(decimal) if decimal else 0))
    if tokens < 1:
        raise UsageError(f"{text!r} is no number of tokens", where=f"--arg={OPTION}", hint="8192, 8k, 8K or auto")
    return tokens


def _value(arguments: Sequence[str], option: str, *, shortest: str) -> str | None:
    """The last value of an option, whose name may be cut down to `shortest`; None: it is not there."""
    found = None
    for at, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        name = name.removeprefix("--").replace("_", "-") if name.startswith("--") else ""
        if name.startswith(shortest) and option.startswith(name):
            following = arguments[at + 1] if at + 1 < len(arguments) else ""
            found = value if equals else following
    return found
