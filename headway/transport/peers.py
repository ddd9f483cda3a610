"""Which peers are lost or have left, and who is told.

Lost: a connection broke, or the peer broke the protocol. Left: the peer said goodbye. A goodbye on one connection may
overtake data on another, so a peer counts as left only when nothing of it is still to be read; a short pause lets
connections in that are between hello and first byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from headway.errors import PeerLostError, TransportError
from headway.transport.loop import ProgressLoop

_LEAVE_POLL_S = 0.1


class Peers:
    """State of the peers of one group. Progress thread only.

    Args:
        loop: the progress thread.
        settled: whether everything that a rank sent has been delivered.
        left: called once for a rank that has left, before the handlers.
    """

    def __init__(self, loop: ProgressLoop, settled: Callable[[int], bool], left: Callable[[int], None]) -> None:
        self._loop, self._settled, self._on_left = loop, settled, left
        self._lost: dict[int, TransportError] = {}
        self._leaving: set[int] = set()
        self._left: set[int] = set()
        self._lost_handlers: list[Callable[[int, str], None]] = []
        self._left_handlers: list[Callable[[int], None]] = []

    @property
    def first_loss(self) -> TransportError | None:
        """The error of the first rank that was lost."""
        return next(iter(self._lost.values()), None)

    def why_gone(self, rank: int) -> TransportError | None:
        """Why nothing can be sent to `rank`; None when it is there."""
        if rank in self._lost:
            return self._lost[rank]
        return self.left_error(rank) if rank in self._leaving else None

    def is_leaving(self, rank: int) -> bool:
        """Whether `rank` has said goodbye somewhere."""
        return rank in self._leaving

    def left_error(self, rank: int) -> PeerLostError:
        """For whoever still wants something of a rank that has left."""
        return PeerLostError(f"rank {rank} has closed its transport", rank=rank)

    def add_lost_handler(self, handler: Callable[[int, str], None]) -> None:
        """Call handler(rank, what) for each lost peer, also for those before."""
        self._lost_handlers.append(handler)
        for rank, error in self._lost.items():
            self._loop.run_next(partial(handler, rank, error.what))

    def add_left_handler(self, handler: Callable[[int], None]) -> None:
        """Call handler(rank) for each peer that has left, also for those before."""
        self._left_handlers.append(handler)
        for rank in self._left:
            self._loop.run_next(partial(handler, rank))

    def lost(self, rank: int, error: TransportError) -> bool:
        """Note that `rank` is lost; False when that is known, or it has left."""
        if rank in self._lost or rank in self._left:
            return False
        self._lost[rank] = error
        return True

    def tell_lost(self, rank: int) -> None:
        """Call the handlers, each by itself so that one that raises keeps nothing from the others."""
        what = self._lost[rank].what
        for handler in self._lost_handlers:
            self._loop.run_next(partial(handler, rank, what))

    def leaving(self, rank: int) -> None:
        """`rank` said goodbye on one of its connections."""
        if rank not in self._leaving:
            self._leaving.add(rank)
            self._loop.run_at(time.monotonic() + _LEAVE_POLL_S, lambda: self._look(rank))

    def _look(self, rank: int) -> None:
        if rank in self._lost:
            return
        if not self._settled(rank):
            self._loop.run_at(time.monotonic() + _LEAVE_POLL_S, lambda: self._look(rank))
            return
        self._left.add(rank)
        self._on_left(rank)
        for handler in self._left_handlers:
            self._loop.run_next(partial(handler, rank))
