"""The blocks of an engine's KV cache: who uses them, what they hold, which goes next. Pure.

As in vLLM v1: running requests and the cache of prefixes share one memory. A block in use has a count of its users.
When the last one lets it go it stays findable under its hash and joins the end of one queue of free blocks; new blocks
are taken from the front of that queue, and what such a block held is forgotten. Blocks without a hash (the last part of
a prompt, answers) join the same queue. Of one request the end of the prompt is queued before its begin, since a prefix
is of no use without what comes before it.

Blocks have no numbers here: of those that hold something findable the hash is the name, the others are counted.
Every call costs O(blocks that it is about).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockCache:
    """The blocks of one engine.

    Attributes:
        blocks: how many there are.
        free: how many nobody uses, those that still hold something included.

    Args:
        blocks: how many there are.
        keeps: whether blocks are found again (prefix caching).
    """

    def __init__(self, blocks: int, *, keeps: bool = True) -> None:
        self.blocks = blocks
        self.free = blocks
        self._keeps = keeps
        self._users: dict[int, int] = {}  # hash -> users of the block that holds it; 0: in the queue
        # Front: taken next. A hash stands for its block, a name for a number of blocks that hold nothing findable.
        self._queue: OrderedDict[int | str, int] = OrderedDict({"new": blocks})
        self._names = 0

    @property
    def findable(self) -> int:
        """Blocks that can be found under a hash, used or not (count)."""
        return len(self._users)

    def hits(self, hashes: Sequence[int], most: int) -> int:
        """How many of the first `most` hashes, from the first on without a gap, are there (count)."""
        users = self._users
        found = 0
        for block in hashes:
            if found == most or block not in users:
                break
            found += 1
        return found

    def unused(self, hashes: Iterable[int]) -> int:
        """How many of these, all of them findable, have no user (count): using them takes as many from `free`."""
        users = self._users
        return sum(1 for block in hashes if users[block] == 0)

    def use(self, hashes: Iterable[int]) -> None:
        """One more user for each of these, all of them findable."""
        users = self._users
        for block in hashes:
            if users[block] == 0:
                del self._queue[block]
                self.free -= 1
            users[block] += 1

    def take(self, count: int) -> None:
        """Use `count` blocks, at most `free`, from the front of the queue; what they held is forgotten."""
        if count > self.free:
            raise ValueError(f"{count} blocks wanted, {self.free} are free")
        self.free -= count
        while count:
            name, have = self._queue.popitem(last=False)
            if isinstance(name, int):
                del self._users[name]
                count -= 1
            elif have > count:
                self._queue[name] = have - count
                self._queue.move_to_end(name, last=False)
                return
            else:
                count -= have

    def name(self, block: int) -> bool:
        """A block taken before now holds what this hash names. False where another one does: it stays unnamed."""
        if not self._keeps or block in self._users:
            return False
        self._users[block] = 1
        return True

    def release(self, named: Sequence[int], unnamed: int) -> None:
        """A request lets its blocks go: the named ones, in the order of the prompt, and a number of others."""
        if unnamed:
            self._names += 1
            self._queue[f"unnamed {self._names}"] = unnamed
            self.free += unnamed
        users = self._users
        for block in reversed(named):
            users[block] -= 1
            if users[block] == 0:
                self._queue[block] = 1
                self.free += 1
