"""The handle of a collective, the threads behind it, and the errors it raises."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch.distributed import DistBackendError

from headway.collectives.operation import OperationOutcome
from headway.errors import DeadlineError, HeadwayError, PeerLostError, TransportError
from headway.torch.completion import CompletionPool
from headway.torch.errors import CollectiveDeadlineError, CollectiveError, CollectivePeerLostError, for_torch
from headway.torch.work import CollectiveWork, JoinedWork

SHORT = timedelta(milliseconds=20)
DONE = OperationOutcome(0.0, 1.0, None)


@pytest.fixture
def pool() -> Iterator[CompletionPool]:
    made = CompletionPool("headway-test")
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "headway-test"]


def work_of(
    pool: CompletionPool, after: threading.Event | None = None, settled: list[object] | None = None
) -> CollectiveWork:
    noted: list[object] = [] if settled is None else settled
    return CollectiveWork(
        label="all_reduce of group test",
        tensors=[torch.ones(2)],
        after=None if after is None else after.set,
        limit_s=5.0,
        pool=pool,
        global_ranks=[4, 7],
        settled=noted.append,
    )


def test_it_is_complete_when_the_engine_says_so(pool: CompletionPool) -> None:
    settled: list[object] = []
    work = work_of(pool, settled=settled)
    assert not work.is_completed()
    with pytest.raises(RuntimeError, match="call wait"):
        work.result()
    threading.Timer(0.02, work.finished, [DONE]).start()
    assert work.wait()
    assert work.wait()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0].tolist() == [1.0, 1.0]
    assert settled == [work]


def test_the_copy_out_comes_before_the_end(pool: CompletionPool) -> None:
    copied = threading.Event()
    work = work_of(pool, after=copied)
    work.finished(DONE)
    work.wait()
    assert copied.is_set()


def test_many_threads_may_wait(pool: CompletionPool) -> None:
    work = work_of(pool)
    passed: list[bool] = []
    threads = [threading.Thread(target=lambda: passed.append(work.wait())) for _ in range(5)]
    for thread in threads:
        thread.start()
    work.finished(DONE)
    for thread in threads:
        thread.join(5)
    assert passed == [True] * 5


def test_a_wait_that_ends_early_names_the_operation(pool: CompletionPool) -> None:
    work = work_of(pool)
    with pytest.raises(CollectiveDeadlineError, match=r"all_reduce of group test: .*it goes on"):
        work.wait(SHORT)
    assert not work.is_completed()
    work.finished(DONE)
    assert work.wait(SHORT)


def test_an_error_reaches_waiters_and_the_future(pool: CompletionPool) -> None:
    work = work_of(pool)
    future = work.get_future()
    work.finished(OperationOutcome(0.0, 1.0, PeerLostError("rank 1 is lost", rank=1, operation="all_reduce #3")))
    with pytest.raises(
        CollectivePeerLostError, match=r"all_reduce #3: rank 1 is lost .*rank 1 of this group is rank 7"
    ):
        work.wait()
    with pytest.raises(CollectivePeerLostError):
        future.wait()
    with pytest.raises(CollectivePeerLostError):
        work.result()
    assert not work.is_success()
    assert isinstance(work.exception(), DistBackendError)


def test_a_future_asked_for_late_is_complete(pool: CompletionPool) -> None:
    work = work_of(pool)
    work.finished(DONE)
    assert work.get_future().done()
    assert work.get_future() is work.get_future()


def test_callbacks_may_wait_for_the_next_operation(pool: CompletionPool) -> None:
    first, second = work_of(pool), work_of(pool)
    chained = first.get_future().then(lambda _: second.get_future().wait()[0])
    first.finished(DONE)
    threading.Timer(0.05, second.finished, [DONE]).start()
    assert chained.wait().tolist() == [1.0, 1.0]


def test_joined_works(pool: CompletionPool) -> None:
    works = [work_of(pool), work_of(pool)]
    joined = JoinedWork(works)
    works[0].finished(DONE)
    assert not joined.is_completed()
    with pytest.raises(CollectiveDeadlineError):
        joined.wait(SHORT)
    future = joined.get_future()
    works[1].finished(DONE)
    assert joined.wait(timedelta(seconds=5))
    assert joined.is_success()
    assert joined.exception() is None
    assert len(joined.result()) == 2
    assert len(future.wait()) == 2
    failed = work_of(pool)
    failed.finished(OperationOutcome(0.0, 1.0, DeadlineError("late", rank=0)))
    assert isinstance(JoinedWork([works[0], failed]).exception(), DeadlineError)
    with pytest.raises(DeadlineError):
        JoinedWork([works[0], failed]).wait()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DeadlineError("late", rank=0), CollectiveDeadlineError),
        (PeerLostError("gone", rank=0), CollectivePeerLostError),
        (TransportError("odd"), CollectiveError),
        (ValueError("odd"), CollectiveError),
    ],
)
def test_errors_are_caught_either_way(error: Exception, kind: type[CollectiveError]) -> None:
    made = for_torch(error, label="broadcast of group g", global_ranks=[0, 1])
    assert type(made) is kind
    assert isinstance(made, (RuntimeError, HeadwayError))
    assert isinstance(made, DistBackendError)
    assert "broadcast of group g" in str(made)
    assert for_torch(made, label="other", global_ranks=[]) is made


def test_the_pool_after_its_end(pool: CompletionPool) -> None:
    pool.close()
    ran: list[str] = []
    pool.submit(lambda: ran.append(threading.current_thread().name))
    assert ran == [threading.current_thread().name]
