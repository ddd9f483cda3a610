"""What the process group asks of the engine, so that tests can put another one in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headway.collectives.operation import OperationOutcome, Reducer
from headway.collectives.plan import Collective


class Engine(Protocol):
    """Runs the collectives of one group; `headway.collectives.communicator.Communicator` is the real one."""

    def run(
        self,
        collective: Collective,
        buffer: memoryview,
        *,
        element_bytes: int,
        reducer: Reducer | None,
        root: int = 0,
        timeout_s: float,
        done: Callable[[OperationOutcome], None],
        what: str = "",
    ) -> int:
        """Start one collective and return its number; `done` is called once, on the progress thread.

        `what` is the same on every rank of a correct program: see `Operation`.
        """
        ...

    def abort(self, reason: str) -> None:
        """Fail everything under way on every rank, and refuse what comes."""
        ...

    def close(self) -> None:
        """Leave the group in order, and release threads and sockets."""
        ...
