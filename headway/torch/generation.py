"""Keeps what an earlier group left in the store from the group that is made now.

torch names the groups of a job by counting, and counts from 0 again once the default group was destroyed. The store
may outlive that (torchrun's does), so the second group of a name finds the first one's addresses and secrets under its
keys. Each group therefore puts its keys under a name that no group had before: rank 0 draws it, and the others take it
only from a roster that repeats the word each of them drew for this one group, which nothing old can.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from typing import Protocol

from headway.errors import DeadlineError
from headway.torch.store import POLL_LONGEST_S, POLL_S

WORD_BYTES = 8


class Meeting(Protocol):
    """Part of the store that all ranks of the group look at, old words included."""

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key`, over what is there."""
        ...

    def peek(self, key: str) -> bytes | None:
        """What is under `key` now, or None."""
        ...


def agree(meeting: Meeting, *, rank: int, size: int, group: str, timeout_s: float) -> str:
    """A name that is the same on all `size` ranks of `group` and that no earlier group had.

    Raises:
        DeadlineError: names a rank that did not come within `timeout_s`.
    """
    if rank == 0:
        return _lead(meeting, size, group, timeout_s)
    return _follow(meeting, rank, group, timeout_s)


def _lead(meeting: Meeting, size: int, group: str, timeout_s: float) -> str:
    """Repeat every rank's latest word until each has confirmed that the word was the one it drew now."""
    name = secrets.token_hex(WORD_BYTES)
    words: dict[int, str] = {}
    waiting = set(range(1, size))
    for _ in _attempts(timeout_s):
        found = {rank: word.decode() for rank in waiting if (word := meeting.peek(f"word/{rank}")) is not None}
        if any(words.get(rank) != word for rank, word in found.items()):
            words.update(found)
            meeting.put("roster", json.dumps([name, words]).encode())
        waiting = {
            rank for rank in waiting if rank not in words or meeting.peek(f"{name}/{rank}") != words[rank].encode()
        }
        if not waiting:
            return name
    missing = min(waiting)
    raise DeadlineError(f"rank {missing} did not join group {group} within {timeout_s:g} s", rank=missing)


def _follow(meeting: Meeting, rank: int, group: str, timeout_s: float) -> str:
    """Draw a word, and wait for the roster that has it."""
    mine = secrets.token_hex(WORD_BYTES)
    meeting.put(f"word/{rank}", mine.encode())
    for _ in _attempts(timeout_s):
        roster = meeting.peek("roster")
        if roster is None:
            continue
        name, words = json.loads(roster)
        if words.get(str(rank)) == mine:
            meeting.put(f"{name}/{rank}", mine.encode())
            return str(name)
    raise DeadlineError(f"rank 0 did not join group {group} within {timeout_s:g} s", rank=0)


def _attempts(timeout_s: float) -> Iterator[None]:
    """Yields now and then, with growing pauses, until the time is over."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = POLL_S
    while True:
        yield
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, POLL_LONGEST_S)
