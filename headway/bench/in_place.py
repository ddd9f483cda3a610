"""The bench inside a job that torchrun (or anything with its environment) has started: every rank runs all of it."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from headway.bench.families import family_of
from headway.bench.torch_peer import TorchPeer, journal_path
from headway.bench.worker import PreparePart, Reply, RunPart, Station
from headway.errors import UsageError


class InPlaceRanks:
    """This job's ranks. All of them call the same methods in the same order; replies travel over gloo."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()

    def prepare(self, part: PreparePart) -> Sequence[Reply]:
        """See `session.Ranks`."""
        return self._gather(self._station.prepare(part, rank=self.rank))

    def run(self, part: RunPart) -> Sequence[Reply]:
        """See `session.Ranks`."""
        return self._gather(self._station.run(part, rank=self.rank))

    def _gather(self, reply: Reply) -> Sequence[Reply]:
        texts: list[str] = [""] * self.ranks
        dist.all_gather_object(texts, reply.model_dump_json())
        return [Reply.model_validate_json(text) for text in texts]


@contextmanager
def joined(backends: Sequence[str], *, timeout_s: float, journals: str = "") -> Iterator[InPlaceRanks]:
    """Join the job that the environment describes, and leave it at the end. UsageError for an MPI peer."""
    for backend in backends:
        if family_of(backend) != "torch":
            raise UsageError(
                f"{backend} cannot run under torchrun", where="--backends", hint="use --ranks or --scenario instead"
            )
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    try:

        def make(backend: str) -> TorchPeer:
            return TorchPeer(backend, journal=journal_path(journals or own, backend), timeout_s=timeout_s)

        # Without a folder for it the journal still tells which plan is in use.
        with tempfile.TemporaryDirectory(prefix="headway-bench-") as own:
            yield InPlaceRanks(Station(make))
    finally:
        dist.destroy_process_group()
