"""Worker processes that try cells, one at a time each. A worker that dies costs its cell, not the others.

`concurrent.futures.ProcessPoolExecutor` gives up all cells when one worker is killed, for example for want of memory,
and cannot end one that takes too long; here each worker has a pipe of its own. Workers are spawned, never forked: a
fork would copy the locks of whatever threads the caller has.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from headway.bench.attempt import Attempt, Function, attempt
from headway.sim.studies.cells import Json

POLL_S = 0.2
"""How long a signal may wait until it is heard."""
END_S = 5.0
"""How long a worker may take to die once it is killed."""

_NOT_FOR_WORKERS = (signal.SIGINT, signal.SIGHUP)
_SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def attempts(
    function: Function, works: Sequence[Json], *, workers: int, limit_s: float | None, check: Callable[[], None]
) -> Iterator[Iterator[Attempt]]:
    """An iterator over the attempts, in the order in which they end; no worker outlives the block.

    Args:
        function: importable by name.
        works: what to call it with.
        workers: processes; 0: here.
        limit_s: a worker that takes longer for one cell is killed.
        check: raises when somebody asked to end.
    """
    if workers == 0:
        yield _here(function, works, check)
        return
    pool = _Pool(function, min(workers, len(works)), limit_s)
    try:
        yield pool.run(works, check)
    finally:
        pool.close()


def _here(function: Function, works: Sequence[Json], check: Callable[[], None]) -> Iterator[Attempt]:
    for index, work in enumerate(works):
        check()
        yield attempt(function, index, work)
    check()


class _Worker:
    """A process and its pipe; `index` is the cell that it has, None while it is idle."""

    def __init__(self, function: Function) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.process: SpawnProcess = _SPAWN.Process(target=_serve, args=(theirs, function), daemon=True)
        # Ctrl-C goes to all processes of a terminal, and what to do about it is for the one that shows the progress.
        # The mask goes over to the worker, so that it hears nothing while it starts either. The resource tracker is
        # started before, since starting it lifts the mask.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_WORKERS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.index: int | None = None
        self.since_s = 0.0
        self.ready = False

    def give(self, index: int, work: Json) -> None:
        self.index, self.since_s = index, time.perf_counter()
        try:
            self.connection.send((index, work))
        except OSError:
            self.process.kill()  # it has died already; its pipe says so in the next round

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join(END_S)
        if self.process.exitcode is not None:
            self.process.close()


class _Pool:
    def __init__(self, function: Function, workers: int, limit_s: float | None) -> None:
        self._function, self._limit_s = function, limit_s
        self._count = workers
        self._workers: list[_Worker] = []

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def run(self, works: Sequence[Json], check: Callable[[], None]) -> Iterator[Attempt]:
        todo = deque(enumerate(works))
        while todo or any(worker.index is not None for worker in self._workers):
            check()
            idle = [worker for worker in self._workers if worker.index is None]
            while todo and (idle or len(self._workers) < self._count):
                worker = idle.pop() if idle else self._new()
                worker.give(*todo.popleft())
            busy = {worker.connection: worker for worker in self._workers if worker.index is not None}
            for connection in wait(list(busy), timeout=POLL_S):
                assert isinstance(connection, Connection)
                yield from self._received(busy[connection])
            yield from self._too_long()
        check()

    def _new(self) -> _Worker:
        worker = _Worker(self._function)
        self._workers.append(worker)
        return worker

    def _received(self, worker: _Worker) -> Iterator[Attempt]:
        index = worker.index
        assert index is not None
        try:
            received = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(END_S)
            words = _ending(worker.process.exitcode)
            self._remove(worker)
            yield Attempt(index, error=f"the worker {words}", wall_s=time.perf_counter() - worker.since_s)
            return
        if received is None:
            worker.ready, worker.since_s = True, time.perf_counter()  # starting was not the cell's time
            return
        assert isinstance(received, Attempt)
        worker.index = None
        # An answer may come before anybody has looked at the clock: the limit is of the cell's time all the same.
        late = self._limit_s is not None and not received.error and received.wall_s > self._limit_s
        yield Attempt(index, error=self._late_words, wall_s=received.wall_s) if late else received

    @property
    def _late_words(self) -> str:
        return f"took longer than {self._limit_s:g} s"

    def _too_long(self) -> Iterator[Attempt]:
        if self._limit_s is None:
            return
        now_s = time.perf_counter()
        busy = [w for w in self._workers if w.index is not None and w.ready and now_s - w.since_s > self._limit_s]
        for worker in busy:
            assert worker.index is not None
            self._remove(worker)
            yield Attempt(worker.index, error=self._late_words, wall_s=now_s - worker.since_s)

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.end()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        memory = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
        return f"was ended by {signal.Signals(-code).name}{memory}"
    return f"ended with exit code {code}"


def _serve(connection: Connection, function: Function) -> None:
    """A worker's life: until its pipe closes or the process that started it has ended."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        connection.send(None)
        while True:
            index, work = connection.recv()
            _answer(connection, function, index, work)
    except (EOFError, OSError):
        return  # whom it worked for has gone


def _answer(connection: Connection, function: Function, index: int, work: Json) -> None:
    done = attempt(function, index, work)
    try:
        connection.send(done)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        connection.send(Attempt(index, error=f"returned what cannot be sent: {error}", wall_s=done.wall_s))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
