"""gloo's works, with futures whose callbacks run where they may do anything.

gloo completes a future on one of its own few threads, and runs the callbacks there. Two things go wrong with that. A
callback that waits for another operation may wait for its own thread. And a callback that holds the group may be the
last to do so (PowerSGD's hook does, when the group is destroyed right after the last step): gloo's threads are then
joined from one of themselves, and the process is aborted with "Resource deadlock avoided". So here a thread of the
group's pool completes the user's future, and gloo's own one holds nothing of the user's.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from headway.torch.completion import CompletionPool
from headway.torch.eager import never_compiled
from headway.torch.work import NO_TIMEOUT


@never_compiled
class RelayedWork(Work):
    """`work` of gloo; all but the future is passed on.

    Args:
        work: a work of gloo on CPU tensors.
        pool: runs the future's callbacks.
    """

    def __init__(self, work: Work, pool: CompletionPool) -> None:
        super().__init__()
        self._work = work
        self._pool = pool
        self._future: torch.futures.Future[list[Tensor]] | None = None
        self._guard = threading.Lock()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """As gloo has it."""
        return self._work.wait(timeout)

    def synchronize(self) -> None:
        """As gloo has it."""
        self._work.synchronize()

    def is_completed(self) -> bool:
        """As gloo has it."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """As gloo has it."""
        return self._work.is_success()

    def exception(self) -> Any:
        """As gloo has it."""
        return self._work.exception()

    def result(self) -> list[Tensor]:
        """As gloo has it."""
        return self._work.result()

    def source_rank(self) -> int:
        """As gloo has it."""
        return self._work.source_rank()

    def _source_rank(self) -> int:
        return self._work._source_rank()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """gloo's value or error. RuntimeError for works that have no future: send, recv, reduce_scatter."""
        with self._guard:
            if self._future is None:
                theirs = self._work.get_future()
                self._future = torch.futures.Future()
                theirs.add_done_callback(partial(_relay, self._pool, self._future))
            return self._future


def _relay(
    pool: CompletionPool, ours: torch.futures.Future[list[Tensor]], theirs: torch.futures.Future[list[Tensor]]
) -> None:
    """Runs on gloo's thread."""
    pool.hand_over(partial(_resolve, ours, theirs))


def _resolve(ours: torch.futures.Future[list[Tensor]], theirs: torch.futures.Future[list[Tensor]]) -> None:
    try:
        value = theirs.wait()
    except Exception as error:
        ours.set_exception(error)  # type: ignore[arg-type]  # torch types it as the value
    else:
        ours.set_result(value)
