"""New connections for flows on slow paths. Pure.

Where a network has several paths between two hosts, the switches choose one by a hash of the connection's addresses and
ports. A flow that got the slow one can leave it without another plan: by a new connection, with another port.

Communication steps and bytes: one connection's hello, and TCP's slow start, at the next operation. It loses where there
is one path only: then it costs a few milliseconds, `most` times per incident.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.cluster.model import Cluster


class Reroutes:
    """Counts them, so that a pair of hosts gets at most `most` until all is calm again."""

    def __init__(self, cluster: Cluster, most: int) -> None:
        self._host_of = list(enumerate(cluster.host_of))
        self._most = most
        self._done: dict[tuple[int, int], int] = {}

    def take(self, host_pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """(source, destination) ranks on these pairs of hosts, less the pairs that had their share."""
        ranks: list[tuple[int, int]] = []
        for pair in host_pairs:
            count = self._done.get(pair, 0)
            if count < self._most:
                self._done[pair] = count + 1
                ranks += [
                    (src, dst) for src, a in self._host_of if a == pair[0] for dst, b in self._host_of if b == pair[1]
                ]
        return tuple(ranks)

    def forget(self) -> None:
        """All is calm: every pair has its full share again."""
        self._done.clear()
