"""The tables of a rank's operations, kept because plans and sizes repeat."""

from __future__ import annotations

from threading import Lock

from headway.collectives.operation import Operation
from headway.collectives.pieces import cut
from headway.collectives.plan import Collective
from headway.collectives.table import Table

KEPT_TABLES = 128


class Tables:
    """Tables by operation, the latest `KEPT_TABLES` kept. Any thread.

    Plans are told apart by identity, because comparing big plans costs more than an operation; a kept table keeps
    its plan, so an identity is never taken twice.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = Lock()
        self._kept: dict[tuple[int, Collective, int, int, int], Table] = {}

    def table(self, operation: Operation) -> Table:
        """The table of `operation`. PlanError when plan and vector don't fit."""
        plan, size_bytes = operation.plan, operation.buffer.nbytes
        key = (id(plan), operation.collective, size_bytes, operation.element_bytes, operation.chunk_bytes)
        with self._lock:
            table = self._kept.get(key)
        if table is None:
            pieces = cut(plan, operation.collective, size_bytes, operation.element_bytes, operation.chunk_bytes)
            table = Table(plan, self._rank, operation.collective, pieces, element_bytes=operation.element_bytes)
            with self._lock:
                if len(self._kept) >= KEPT_TABLES:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = table
        return table
