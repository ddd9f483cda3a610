"""Buffers for pieces that must wait before they can be added."""

from __future__ import annotations

SMALLEST_BYTES = 4096
RETAIN_BYTES = 32 * 2**20
"""Kept for the next operation; what a burst needed beyond it is given back to the system."""


class ScratchPool:
    """Buffers by size class (powers of two), reused. One thread only.

    It never refuses: what is out at once is bounded by what the peers can send, one contribution per child and
    piece, because a rank that stopped reading could stop all.

    Attributes:
        outstanding: buffers taken and not given back.
    """

    def __init__(self) -> None:
        self.outstanding = 0
        self._retained_bytes = 0
        self._free: dict[int, list[bytearray]] = {}

    def take(self, size_bytes: int) -> memoryview:
        """A buffer of exactly `size_bytes`; its content is arbitrary."""
        capacity = max(SMALLEST_BYTES, 1 << (size_bytes - 1).bit_length())
        free = self._free.get(capacity)
        self.outstanding += 1
        if free:
            self._retained_bytes -= capacity
            base = free.pop()
        else:
            base = bytearray(capacity)
        return memoryview(base)[:size_bytes]

    def give(self, view: memoryview) -> None:
        """Give back what `take` returned."""
        base = view.obj
        if not isinstance(base, bytearray):
            raise TypeError("not a buffer of this pool")
        self.outstanding -= 1
        capacity = len(base)
        if self._retained_bytes + capacity > RETAIN_BYTES:
            return
        self._retained_bytes += capacity
        self._free.setdefault(capacity, []).append(base)

    def forget(self, count: int) -> None:
        """Count `count` buffers as returned without reusing them: somebody may still write into them."""
        self.outstanding -= count
