"""The handle of one collective: torch's `Work`."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import torch
from torch.distributed import Work

from headway.collectives.operation import OperationOutcome
from headway.torch.completion import CompletionPool
from headway.torch.eager import never_compiled
from headway.torch.errors import CollectiveDeadlineError, CollectiveError, for_torch

NO_TIMEOUT = timedelta(0)
GRACE_S = 30.0
"""The engine ends every operation at its limit. Should it not, a wait ends by itself so much later."""


@never_compiled
class CollectiveWork(Work):
    """One collective under way.

    Args:
        label: for errors: "all_reduce of group default".
        tensors: what `result` and the future's value are.
        after: what is left to do when the engine is done (a copy out); None for nothing. Runs on the pool.
        limit_s: the operation's own limit.
        pool: runs `after` and the future's callbacks.
        global_ranks: rank in the job of each rank in the group, for errors.
        settled: called with this work when it is complete or has failed.
    """

    def __init__(
        self,
        *,
        label: str,
        tensors: list[torch.Tensor],
        after: Callable[[], None] | None,
        limit_s: float,
        pool: CompletionPool,
        global_ranks: Sequence[int],
        settled: Callable[[CollectiveWork], None],
    ) -> None:
        super().__init__()
        self._label = label
        self._tensors = tensors
        self._after = after
        self._deadline_s = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._pool = pool
        self._global_ranks = global_ranks
        self._settled = settled
        self._complete = False
        self._error: CollectiveError | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._guard = threading.Lock()
        # Held until the work is complete: the cheapest thing that many threads can wait on without spinning.
        self._gate = _thread.allocate_lock()
        self._gate.acquire()

    def finished(self, outcome: OperationOutcome) -> None:
        """The engine is done; called on its progress thread."""
        if outcome.error is not None:
            self._settle(for_torch(outcome.error, label=self._label, global_ranks=self._global_ranks))
        elif self._after is not None:
            self._pool.submit(self._finish)
        else:
            self._settle(None)

    def fail(self, error: Exception) -> None:
        """End with `error`, unless it is complete already."""
        if not self._complete:
            self._settle(for_torch(error, label=self._label, global_ranks=self._global_ranks))

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until complete, at most `timeout`; without one, until the operation's own limit.

        Raises CollectiveError and its kinds (also DistBackendErrors). A `timeout` that expires leaves the operation
        running: it may be waited for again.
        """
        if not self._complete:
            asked_s = timeout.total_seconds()
            wait_s = asked_s if asked_s > 0 else max(0.0, self._deadline_s - time.monotonic()) + GRACE_S
            if not self._gate.acquire(timeout=min(wait_s, threading.TIMEOUT_MAX)):
                what = f"not complete after this wait's limit of {asked_s:g} s; it goes on"
                if asked_s <= 0:
                    what = f"not complete {GRACE_S:g} s after its limit of {self._limit_s:g} s"
                raise CollectiveDeadlineError(what, operation=self._label)
            self._gate.release()
        if self._error is not None:
            raise self._error
        return True

    def settles(self, limit_s: float) -> bool:
        """Wait at most `limit_s`; whether it is complete or has failed. Raises nothing."""
        if not self._complete and self._gate.acquire(timeout=min(limit_s, threading.TIMEOUT_MAX)):
            self._gate.release()
        return self._complete

    def synchronize(self) -> None:
        """As `wait` without a timeout."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._complete

    def is_success(self) -> bool:
        """Whether it is complete without an error."""
        return self._complete and self._error is None

    def exception(self) -> CollectiveError | None:
        """The error it failed with, or None."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result. RuntimeError before it is complete, as torch has it."""
        if not self._complete:
            raise RuntimeError(f"{self._label}: call wait() before result()")
        if self._error is not None:
            raise self._error
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future whose value is `result()`. Its callbacks run on a thread of their own, and may wait."""
        with self._guard:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._complete:
                    self._resolve(self._future)
            return self._future

    def _finish(self) -> None:
        try:
            if self._after is not None:
                self._after()
        except Exception as error:
            self._settle(CollectiveError(f"copying the result out failed: {error}", operation=self._label))
        else:
            self._settle(None)

    def _settle(self, error: CollectiveError | None) -> None:
        with self._guard:
            if self._complete:
                return
            self._after = None
            self._error = error
            self._complete = True
            future = self._future
        self._gate.release()
        self._settled(self)
        if future is not None:
            self._pool.submit(partial(self._resolve, future))

    def _resolve(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self._error is not None:
            future.set_exception(self._error)  # type: ignore[arg-type]  # torch types it as the value
        else:
            future.set_result(self._tensors)


@never_compiled
class JoinedWork(Work):
    """Several works as one: complete when all are, and failed as the first that failed.

    Args:
        works: at least one.
        tensors: what `result` is; the works' results one after the other when not given.
    """

    def __init__(self, works: Sequence[Work], tensors: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self._works = list(works)
        self._tensors = tensors

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for each; `timeout` holds for all together."""
        limit_s = timeout.total_seconds()
        deadline_s = time.monotonic() + limit_s
        for work in self._works:
            if limit_s > 0:
                work.wait(timedelta(seconds=max(1e-3, deadline_s - time.monotonic())))
            else:
                work.wait()
        return True

    def synchronize(self) -> None:
        """As `wait` without a timeout."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether all are."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all are."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """The first one's that has one."""
        errors = [error for work in self._works if isinstance(error := work.exception(), Exception)]
        return errors[0] if errors else None

    def result(self) -> list[torch.Tensor]:
        """Their tensors, one after the other."""
        if self._tensors is not None:
            return self._tensors
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future whose value is `result()`."""
        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(lambda done: [t for part in done.wait() for t in part.value()])
