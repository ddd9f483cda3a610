"""A rendezvous between threads of one process."""

from __future__ import annotations

import threading
import time

from headway.errors import DeadlineError


class DictRendezvous:
    """`Rendezvous` on a dict."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        """See `Rendezvous`."""
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        """See `Rendezvous`."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while key not in self.values:
                if not self._changed.wait(deadline_s - time.monotonic()) and key not in self.values:
                    raise DeadlineError(f"nobody put {key} within {timeout_s:g} s")
            return self.values[key]
