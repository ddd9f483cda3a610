"""torch's Store as the place where ranks leave each other their addresses."""

from __future__ import annotations

import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from headway.errors import DeadlineError

POLL_S = 0.005
POLL_LONGEST_S = 0.1


class StoreRendezvous:
    """A `Rendezvous` on a torch Store.

    `get` polls instead of waiting inside the store: a TCP store serves one request at a time for a process, so a
    rank that waited in it would block its own other groups, and be blocked by them.

    Args:
        store: the group's store; keys are put under a prefix of their own.
        prefix: told apart from others that use the same store.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = PrefixStore(prefix, store)

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key` for every rank."""
        # The hex form survives stores that take text only.
        self._store.set(key, value.hex())

    def peek(self, key: str) -> bytes | None:
        """The value under `key` now, or None."""
        return bytes.fromhex(self._store.get(key).decode()) if self._store.check([key]) else None

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value under `key`; waits for it. DeadlineError after `timeout_s` names the key."""
        deadline_s = time.monotonic() + timeout_s
        pause_s = POLL_S
        while not self._store.check([key]):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise DeadlineError(f"nothing under {key!r} in the store after {timeout_s:g} s")
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, POLL_LONGEST_S)
        self._store.set_timeout(timedelta(seconds=max(1.0, timeout_s)))
        return bytes.fromhex(self._store.get(key).decode())


def store_host(store: Store) -> str:
    """The host that serves `store`, or empty when it is no TCP store."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""
