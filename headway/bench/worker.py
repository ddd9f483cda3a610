"""The ranks' side of the bench: runs cells, times iterations, checks results.

A `Peer` is one library on one rank (torch.distributed with one backend, or MPI). `serve` is the main loop of a rank
that a coordinator started; under torchrun the ranks run the same `Station` without one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from headway.bench.data import DATA_TYPES, Cell, count_wrong, tolerance_of
from headway.collectives.plan import Collective
from headway.errors import HeadwayError


class PreparePart(BaseModel):
    """Get ready for a cell on one backend: make the group, fill the buffers."""

    model_config = ConfigDict(frozen=True)

    do: str = "prepare"
    backend: str
    collective: Collective
    count: int
    type: str
    redop: str
    root: int
    ranks: int
    seed: int

    @property
    def cell(self) -> Cell:
        """The cell that is meant."""
        return Cell(self.collective, self.count, DATA_TYPES[self.type], self.redop, self.root, self.ranks, self.seed)


class RunPart(BaseModel):
    """Run the prepared cell `iterations` times back to back; check the last result if `check`."""

    model_config = ConfigDict(frozen=True)

    do: str = "run"
    backend: str
    iterations: int
    check: bool


class Reply(BaseModel):
    """What one rank has to say: its times, its wrong elements, the plan in use, or why it failed."""

    model_config = ConfigDict(frozen=True)

    rank: int
    times_s: list[float] = []
    wrong: int | None = None
    plan: str = ""
    error: str = ""


class Peer(Protocol):
    """One library on one rank, ready for one cell at a time."""

    rank: int

    def prepare(self, cell: Cell) -> None:
        """Make buffers for `cell`. HeadwayError when the library cannot do it."""
        ...

    def reset(self) -> None:
        """Put this rank's contribution back where the collective takes it from. Not timed."""
        ...

    def barrier(self) -> None:
        """Wait for every rank. Not timed."""
        ...

    def run(self) -> None:
        """The collective, start to end. Timed."""
        ...

    def result(self) -> NDArray[np.generic]:
        """What this rank holds now, shape (elements of its result,)."""
        ...

    def plan(self) -> str:
        """The plan in use, in the library's words; empty when it does not say."""
        ...


class Station:
    """One rank with its peers, by backend name; peers are made on first use.

    Args:
        make: makes the peer of a backend.
        spoil: changes a result before it is checked; a test uses it to see that the check sees.
    """

    def __init__(
        self, make: Callable[[str], Peer], *, spoil: Callable[[NDArray[np.generic]], None] | None = None
    ) -> None:
        self._make = make
        self._spoil = spoil
        self._peers: dict[str, Peer] = {}
        self._cells: dict[str, Cell] = {}

    def prepare(self, part: PreparePart, *, rank: int) -> Reply:
        """Carry out a `PreparePart`."""
        try:
            peer = self._peers.get(part.backend)
            if peer is None:
                peer = self._peers[part.backend] = self._make(part.backend)
            self._cells[part.backend] = part.cell
            peer.prepare(part.cell)
        except (HeadwayError, RuntimeError, NotImplementedError, ImportError, ValueError) as error:
            return Reply(rank=rank, error=_first_line(error))
        return Reply(rank=rank)

    def run(self, part: RunPart, *, rank: int) -> Reply:
        """Carry out a `RunPart`."""
        peer, cell = self._peers[part.backend], self._cells[part.backend]
        times: list[float] = []
        try:
            peer.barrier()
            for _ in range(part.iterations):
                peer.reset()
                begin_s = time.perf_counter()
                peer.run()
                times.append(time.perf_counter() - begin_s)
            wrong = self._check(peer, cell) if part.check else None
        except (HeadwayError, RuntimeError, NotImplementedError, ValueError) as error:
            return Reply(rank=rank, error=_first_line(error))
        return Reply(rank=rank, times_s=times, wrong=wrong, plan=peer.plan())

    def _check(self, peer: Peer, cell: Cell) -> int:
        expected = cell.expected(peer.rank)
        if expected is None:
            return 0
        result = peer.result()
        if self._spoil is not None:
            self._spoil(result)
        return count_wrong(result, expected, tolerance=tolerance_of(cell))


def serve(station: Station, *, rank: int, receive: Callable[[], str], send: Callable[[str], None]) -> None:
    """Carry out parts until the coordinator hangs up. `receive` returns "" at the end."""
    while True:
        text = receive()
        if not text:
            return
        if json.loads(text)["do"] == "prepare":
            reply = station.prepare(PreparePart.model_validate_json(text), rank=rank)
        else:
            reply = station.run(RunPart.model_validate_json(text), rank=rank)
        send(reply.model_dump_json())


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
