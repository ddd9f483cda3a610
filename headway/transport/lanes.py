"""Several connections to one peer, so that its messages get several connections' share of a full link.

Whoever steers says how many to use; further ones are opened when they are first asked for, and stay open. A message
goes as a whole over the connection that is waiting least, so messages to one peer may overtake each other; the
receiver sees one connection more from the same rank, and needs to know nothing.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

from headway.errors import TransportError
from headway.observe.samples import FlowSample
from headway.transport.loop import ProgressLoop
from headway.transport.outflow import Outflow, State


class Steering(Protocol):
    """Who says how hard the bulk connections of a group push. Called on the progress thread only."""

    @property
    def widest(self) -> int:
        """The most connections to one peer that `width` will ask for."""
        ...

    def width(self, connection: socket.socket) -> int:
        """How many connections to use for the peer whose first one this is, 1 or more. Asked for every message."""
        ...

    def opened(self, connection: socket.socket, *, first: bool) -> None:
        """A connection can carry messages; `first`: it is the first one to its peer."""
        ...

    def closed(self, connection: socket.socket) -> None:
        """A connection that was told of has ended, and may be closed already."""
        ...

    def tick(self, now_s: float) -> float | None:
        """Called now and then; returns seconds until the next call, None: never again."""
        ...

    def close(self) -> None:
        """The group ends; called while its connections are still open."""
        ...


class FixedStreams:
    """Always so many connections to each peer."""

    def __init__(self, streams: int) -> None:
        self._streams = streams

    @property
    def widest(self) -> int:
        """See `Steering`."""
        return self._streams

    def width(self, connection: socket.socket) -> int:
        """See `Steering`."""
        return self._streams

    def opened(self, connection: socket.socket, *, first: bool) -> None:
        """Nothing to do."""

    def closed(self, connection: socket.socket) -> None:
        """Nothing to do."""

    def tick(self, now_s: float) -> float | None:
        """See `Steering`."""
        return None

    def close(self) -> None:
        """Nothing to do."""


class Lanes:
    """The further connections of a group, and what steering knows. Progress thread only.

    Args:
        loop: the progress thread.
        steering: see there.
        connect: begins a further connection to a rank; TransportError when it is gone.
        firsts: the first connections of the group that carry bulk messages.
    """

    def __init__(
        self,
        loop: ProgressLoop,
        steering: Steering,
        connect: Callable[[int], Outflow],
        firsts: Callable[[], Iterator[Outflow]],
    ) -> None:
        self._loop, self._connect, self._firsts = loop, connect, firsts
        self.steering = steering
        self._further: dict[int, list[Outflow]] = {}
        self._told: set[Outflow] = set()
        self._ended = False
        loop.run_soon(self._tick)

    def every(self) -> Iterator[Outflow]:
        """All further connections."""
        return chain.from_iterable(self._further.values())

    def to(self, dst: int) -> Sequence[Outflow]:
        """The further connections to one peer."""
        return self._further.get(dst, ())

    def choose(self, first: Outflow) -> Outflow:
        """Which connection the next message goes over, `first` being the peer's first."""
        further = self.steering.width(first.sock) - 1
        if further < 1 or first.state is not State.OPEN:
            return first
        mine = self._further.setdefault(first.dst, [])
        while len(mine) < further:
            try:
                mine.append(self._connect(first.dst))
            except TransportError:
                return first  # whatever became of the peer, its first connection will tell
        best, least = first, first.waiting
        for each in mine[:further]:
            if each.state is State.OPEN and each.waiting < least:
                best, least = each, each.waiting
        return best

    def forget(self, dst: int) -> Sequence[Outflow]:
        """The further connections to one peer, which are the caller's from here on."""
        return self._further.pop(dst, ())

    def close(self) -> None:
        """Steering ends, the connections stay as they are. Idempotent."""
        if not self._ended:
            self._ended = True
            self.steering.close()

    def _tick(self) -> None:
        if self._ended:
            return
        firsts = [*self._firsts()]
        here = {outflow for outflow in (*firsts, *self.every()) if outflow.state is State.OPEN}
        for outflow in self._told - here:
            self._told.discard(outflow)
            self.steering.closed(outflow.sock)
        for outflow in here - self._told:
            self._told.add(outflow)
            self.steering.opened(outflow.sock, first=outflow in firsts)
        again_s = self.steering.tick(time.monotonic())
        if again_s is not None:
            self._loop.run_at(time.monotonic() + again_s, self._tick)


def add_up(samples: Sequence[FlowSample]) -> list[FlowSample]:
    """One sample for each peer, of what its connections did side by side.

    Bytes and retransmits add up. Times, and the round trip, are those of the connection that the network held back
    longest: the others ran beside it.
    """
    by_peer: dict[int, list[FlowSample]] = {}
    for sample in samples:
        by_peer.setdefault(sample.dst, []).append(sample)
    return [mine[0] if len(mine) == 1 else _sum(mine) for mine in by_peer.values()]


def _sum(samples: Sequence[FlowSample]) -> FlowSample:
    longest = max(samples, key=lambda sample: sample.network_limited_s)
    retransmits = [sample.retransmits for sample in samples if sample.retransmits is not None]
    round_trips_s = [sample.min_rtt_s for sample in samples if sample.min_rtt_s is not None]
    return replace(
        longest,
        start_s=min(sample.start_s for sample in samples),
        end_s=max(sample.end_s for sample in samples),
        acked_bytes=sum(sample.acked_bytes for sample in samples),
        retransmits=sum(retransmits) if retransmits else None,
        min_rtt_s=min(round_trips_s, default=None),
    )
