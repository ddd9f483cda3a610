"""What each replica probably has in its prefix cache: a mirror made of what it was sent. Pure.

Blocks are named by chained hashes, so that a replica that holds block k holds all before it. The mirror keeps this: of
one prompt the last block is the first to go, as in vLLM. Who holds a block is one bitmask, and one walk along the
prompt's blocks gives the hits on all replicas: O(blocks + replicas that hold the first one).

The mirror is a guess. The engine's own word is better: `ended` takes the engine's count of cached tokens, and where it
is far below what was expected, everything that was used no later than the missing blocks is forgotten, because an
engine that drops the least recently used blocks has dropped those too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headway.serving.request import Request

DEFAULT_CACHE_TOKENS = 32_768
"""Taken for the size of a prefix cache that is not known, tokens: about what a model of 8B parameters in 16 bits leaves
of 24 GB (0.9 * 24 GB less 16 GB of weights less 1 GB of activations, at 131,072 bytes per token of Llama 3 8B)."""

DISBELIEF = 0.5
"""The mirror is corrected where the engine found less than this share of the expected tokens (1): prompts' tokens are
estimated by the gateway, so smaller differences say nothing. Ours."""

EMPTY_LIMIT = 3
"""Expected hits in sequence that found nothing at all, after which a replica is taken to have no prefix cache (count),
until it reports cached tokens. Ours."""

_PARTS = 64
"""Parts of the table of holders (count, a power of two). A table that grows is copied as a whole: 27 ms at 700,000
entries, which everybody behind this request would wait for."""

_LOWEST = _PARTS - 1
_MASK = (1 << 64) - 1

_Key = int | tuple[int]
_Stamp = tuple[int, int]


def mix(value: int) -> int:
    """A 64-bit integer scrambled so that each bit depends on all of `value`'s (splitmix64, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def chain(ids: Sequence[int]) -> tuple[int, ...]:
    """One 64-bit hash per block, each of the block's id and of the hash before it.

    Args:
        ids: one id per block, in order; the same id is the same text. Any integers; their lowest 64 bits count.
    """
    hashes = []
    previous = 0
    for number in ids:
        previous = mix(previous ^ mix(number & _MASK))
        hashes.append(previous)
    return tuple(hashes)


@dataclass(frozen=True, slots=True)
class Sent:
    """What the index has to remember of a request until it ends.

    Attributes:
        sequence: number of this sending, for all replicas together; a block bears that of its last use.
        held: whole blocks at the prompt's begin that were there already (count).
        runs: of the blocks that were there, deepest first: (index of the run's last block, sequence of its last use).
            Only those whose last user had its first token when this was sent: the others may not have been computed.
    """

    sequence: int
    held: int = 0
    runs: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Mirror:
    """One replica: its blocks from the least to the most recently used, each with (sequence of last use, tokens)."""

    bit: int
    capacity_tokens: int
    used_tokens: int = 0
    blocks: OrderedDict[_Key, _Stamp] = field(default_factory=OrderedDict)
    prefilling: set[int] = field(default_factory=set)
    empty: int = 0


class PrefixIndex:
    """Which blocks each replica probably has cached, least recently used out first, bounded by its cache's tokens.

    Memory: one entry per block and replica that holds it, so at most the sum of the caches' tokens over the tokens of
    a block. One thread uses it.
    """

    def __init__(self) -> None:
        self._mirrors: dict[str, _Mirror] = {}
        self._names: dict[int, str] = {}
        self._free_bits: list[int] = []
        self._holders: tuple[dict[int, int], ...] = tuple({} for _ in range(_PARTS))
        self._sequence = 0

    def join(self, replica: str, cache_tokens: int | None = None) -> None:
        """Begin to mirror a replica, with an empty cache. None: `DEFAULT_CACHE_TOKENS`; 0: it has no prefix cache.

        Raises ValueError where there is one of that name.
        """
        if replica in self._mirrors:
            raise ValueError(f"replica {replica!r} is mirrored already")
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._mirrors)
        self._mirrors[replica] = _Mirror(bit, DEFAULT_CACHE_TOKENS if cache_tokens is None else cache_tokens)
        self._names[bit] = replica

    def leave(self, replica: str) -> None:
        """Stop mirroring a replica. Raises KeyError where it is unknown."""
        self.forget(replica)
        bit = self._mirrors.pop(replica).bit
        del self._names[bit]
        self._free_bits.append(bit)

    def forget(self, replica: str) -> None:
        """Its cache is taken to be empty: the engine was restarted, or may have been."""
        mirror = self._mirrors[replica]
        self._drop_until(mirror, self._sequence)
        mirror.empty = 0

    def resize(self, replica: str, cache_tokens: int) -> None:
        """Its cache holds that many tokens; what is too much goes."""
        mirror = self._mirrors[replica]
        mirror.capacity_tokens = cache_tokens
        self._evict(mirror)

    def hits(self, request: Request, replica: str) -> int:
        """Tokens of the prompt that the replica probably has, in whole blocks, and never the whole prompt: an engine
        computes the last token always (vLLM). 0 for a replica that is unknown."""
        return self.all_hits(request).get(replica, 0)

    def all_hits(self, request: Request) -> dict[str, int]:
        """Tokens of the prompt by replica, as `hits`; replicas with none are left out."""
        size = request.block_tokens
        findable = min(len(request.blocks), (request.input_tokens - 1) // size)
        found: dict[str, int] = {}
        if findable <= 0:
            return found
        holders, blocks = self._holders, request.blocks
        alive = holders[blocks[0] & _LOWEST].get(blocks[0], 0)
        depth = 1
        while alive and depth < findable:
            block = blocks[depth]
            held = holders[block & _LOWEST].get(block, 0) & alive
            if held != alive:
                for name in self._named(alive & ~held):
                    found[name] = depth * size
                alive = held
            depth += 1
        for name in self._named(alive):
            found[name] = findable * size
        return found

    def sent(self, request: Request, replica: str) -> Sent:
        """A request goes to a replica: its whole blocks will be there, the most recently used of all.

        Returns what `computed`, `ended` or `unsent` want back; exactly one of the latter two ends it.
        """
        mirror = self._mirrors[replica]
        self._sequence += 1
        size, bit = request.block_tokens, mirror.bit
        stamp = (self._sequence, size)
        count = min(len(request.blocks), request.input_tokens // size, mirror.capacity_tokens // size)
        kept, holders = mirror.blocks, self._holders
        runs: list[tuple[int, int]] = []
        last_used = held = 0
        for index in range(count - 1, -1, -1):
            block = request.blocks[index]
            before = kept.get(block)
            kept[block] = stamp
            if before is None:
                part = holders[block & _LOWEST]
                part[block] = part.get(block, 0) | bit
                mirror.used_tokens += size
                continue
            kept.move_to_end(block)
            held = held or index + 1
            mirror.used_tokens += size - before[1]
            if before[0] != last_used:
                last_used = before[0]
                if last_used not in mirror.prefilling:
                    runs.append((index, last_used))
        mirror.prefilling.add(self._sequence)
        self._evict(mirror)
        return Sent(self._sequence, held, tuple(runs))

    def computed(self, replica: str, sent: Sent) -> None:
        """The first token has come: the prompt's blocks are there now."""
        self._mirrors[replica].prefilling.discard(sent.sequence)

    def ended(
        self,
        request: Request,
        replica: str,
        sent: Sent,
        *,
        output_tokens: int,
        hit_tokens: int,
        cached_tokens: int | None,
    ) -> None:
        """A request has ended after its first token.

        Args:
            request, replica, sent: as in `sent`.
            output_tokens: its answer's tokens; they and the rest of the prompt take room in the cache too.
            hit_tokens: what was expected of the cache when it was sent.
            cached_tokens: prompt tokens that the engine found in its cache; None where it didn't say.
        """
        mirror = self._mirrors[replica]
        mirror.prefilling.discard(sent.sequence)
        if cached_tokens is not None:
            self._correct(mirror, request, sent, hit_tokens, cached_tokens)
        whole = min(len(request.blocks), request.input_tokens // request.block_tokens)
        rest_tokens = request.input_tokens - whole * request.block_tokens + output_tokens
        room_tokens = min(rest_tokens, mirror.capacity_tokens)
        if room_tokens > 0:
            self._sequence += 1
            mirror.blocks[(self._sequence,)] = (self._sequence, room_tokens)
            mirror.used_tokens += room_tokens
            self._evict(mirror)

    def unsent(self, request: Request, replica: str, sent: Sent) -> None:
        """A request was not sent after all, or failed before its first token: the blocks that only it brought go."""
        mirror = self._mirrors[replica]
        mirror.prefilling.discard(sent.sequence)
        for block in reversed(request.blocks[sent.held :]):
            stamp = mirror.blocks.get(block)
            if stamp is not None and stamp[0] == sent.sequence:
                self._dropped(mirror, block, mirror.blocks.pop(block))

    def used_tokens(self, replica: str) -> int:
        """Tokens that the mirror holds for a replica, its cache's at most."""
        return self._mirrors[replica].used_tokens

    def _correct(self, mirror: _Mirror, request: Request, sent: Sent, hit_tokens: int, cached_tokens: int) -> None:
        if cached_tokens > 0:
            mirror.empty = 0
        if cached_tokens >= DISBELIEF * hit_tokens:
            return
        missing = cached_tokens // request.block_tokens
        gone = [sequence for index, sequence in sent.runs if index >= missing]
        if not gone:
            return
        self._drop_until(mirror, max(gone))
        if cached_tokens == 0:
            mirror.empty += 1

    def _evict(self, mirror: _Mirror) -> None:
        kept = mirror.blocks
        while mirror.used_tokens > mirror.capacity_tokens:
            key, stamp = kept.popitem(last=False)
            self._dropped(mirror, key, stamp)

    def _drop_until(self, mirror: _Mirror, sequence: int) -> None:
        kept = mirror.blocks
        while kept:
            key = next(iter(kept))
            if kept[key][0] > sequence:
                return
            self._dropped(mirror, key, kept.pop(key))

    def _dropped(self, mirror: _Mirror, key: _Key, stamp: _Stamp) -> None:
        mirror.used_tokens -= stamp[1]
        if isinstance(key, int):
            part = self._holders[key & _LOWEST]
            left = part[key] ^ mirror.bit
            if left:
                part[key] = left
            else:
                del part[key]

    def _named(self, bits: int) -> Iterator[str]:
        while bits:
            bit = bits & -bits
            name = self._names[bit]
            if self._mirrors[name].empty < EMPTY_LIMIT:
                yield name
            bits ^= bit
