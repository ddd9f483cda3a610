"""Where the ranks of a group leave each other their addresses before they can talk."""

from __future__ import annotations

import json
import secrets
import time
from typing import Protocol

from headway.errors import DeadlineError
from headway.transport.wire import TOKEN_BYTES


class Rendezvous(Protocol):
    """A small key-value store that all ranks of the job reach (torch's Store, or a dict between threads)."""

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key` for every rank."""
        ...

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value under `key`; waits for it. DeadlineError after `timeout_s` names the key."""
        ...


def meet(
    rendezvous: Rendezvous, *, rank: int, size: int, group: str, own: tuple[str, int], timeout_s: float
) -> tuple[bytes, list[tuple[str, int]]]:
    """Publish our address; learn the group's token (rank 0 makes it) and every rank's address, in order of rank.

    Raises:
        DeadlineError: names the rank that did not publish within `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    prefix = f"headway/{group}"
    if rank == 0:
        rendezvous.put(f"{prefix}/token", secrets.token_bytes(TOKEN_BYTES))
    rendezvous.put(f"{prefix}/address/{rank}", json.dumps(own).encode())

    def get(key: str, whose: int) -> bytes:
        try:
            return rendezvous.get(f"{prefix}/{key}", max(0.001, deadline_s - time.monotonic()))
        except DeadlineError as error:
            what = f"rank {whose} did not join group {group} within {timeout_s:g} s"
            raise DeadlineError(what, rank=whose) from error

    token = get("token", 0)
    addresses: list[tuple[str, int]] = []
    for other in range(size):
        host, port = json.loads(get(f"address/{other}", other))
        addresses.append((str(host), int(port)))
    return token, addresses
