"""Where the ranks of a group leave each other their addresses before they can talk."""

from __future__ import annotations

from typing import Protocol


class Rendezvous(Protocol):
    """A small key-value store that all ranks of the job reach (torch's Store, or a dict between threads)."""

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key` for every rank."""
        ...

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value under `key`; waits for it. DeadlineError after `timeout_s` names the key."""
        ...
