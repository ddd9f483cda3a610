"""The keys by which a job's connections find their ways through the network, as an address and a port pair do. Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from headway.lab.draws import mix

Pair = tuple[int, int]


def job_key(name: str, seed: int) -> int:
    """From which all connections of a job have theirs."""
    return mix(seed, zlib.crc32(name.encode()))


def pair_key(key: int, src: int, dst: int, times: int = 0) -> int:
    """Of the connection from rank `src` to rank `dst` of the job with `key`, made anew `times` times."""
    return mix(key, src, dst, times) if times else mix(key, src, dst)


@dataclass(frozen=True)
class Connections:
    """The key of each pair's connection, some of which were made again: `again` says how often."""

    key: int
    again: frozenset[tuple[Pair, int]]

    def __call__(self, src: int, dst: int) -> int:
        return pair_key(self.key, src, dst, dict(self.again).get((src, dst), 0))
