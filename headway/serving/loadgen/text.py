"""Text for the blocks of a prompt: deterministic words, so that the same block id is the same text everywhere. Pure.

One word stands for one token. The words are common English ones that byte-pair and sentence-piece vocabularies hold
whole, with the space before them: with Gemma 3's tokenizer 5120 words are 5120 tokens, exactly. Where a vocabulary has
some of them in two pieces, prompts come out longer; the server's own count (`usage.prompt_tokens`) is what is reported.
A chat adds its template's tokens, some 10.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from headway.serving.workload.arrival import Arrival

_LIST = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea body information back parent face
others level office door health person art war history party result change morning reason research girl guy moment air
teacher force education foot boy age policy process music market sense nation plan college interest death experience
effect use class control care field development role effort rate heart drug show leader light voice wife police mind
price report decision son view relationship town road arm difference value building action season society tax director
position player record paper space ground form event official matter center couple site project activity star table
need court oil half situation cost industry figure street image phone data picture practice piece land product doctor
wall worker news test movie north love support technology step baby computer type attention film tree source hair look
south crime science hotel bank fire model base letter style sound sea list risk ship task unit range green black white
small large long short early late hard easy open clear dark deep strong simple free full real true public local human
great little young old new big cold warm first last past
"""
WORDS = tuple(_LIST.split())
"""256 of them: one per byte of a hash."""

_CACHED_BLOCKS = 16_384


def prompt_of(arrival: Arrival) -> str:
    """The prompt of a request: its blocks' texts, the last one cut so that it has `input_tokens` words in all."""
    size = arrival.block_tokens
    whole, part = divmod(arrival.input_tokens, size)
    texts = [block_text(block, size) for block in arrival.block_ids[:whole]]
    if part:
        texts.append(" ".join(block_text(arrival.block_ids[whole], size).split(" ", part)[:part]))
    return " ".join(texts)


@lru_cache(maxsize=_CACHED_BLOCKS)
def block_text(block: int, tokens: int) -> str:
    """So many words for a block id; which ones depends on nothing else."""
    digest = hashlib.shake_128(block.to_bytes(16, "little", signed=True)).digest(tokens)
    return " ".join(map(WORDS.__getitem__, digest))
