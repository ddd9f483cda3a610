"""Groups end, and others of the same name begin."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from headway.errors import DeadlineError
from headway.torch.completion import CompletionPool
from headway.torch.generation import agree
from headway.torch.store import StoreRendezvous
from tests.torch import lifetimes
from tests.torch.world import run_world


def names_of(meeting: StoreRendezvous, size: int) -> list[str]:
    """What `size` ranks agree on."""
    with ThreadPoolExecutor(size) as threads:
        ranks = [
            threads.submit(agree, meeting, rank=rank, size=size, group="g", timeout_s=10.0) for rank in range(size)
        ]
        return [rank.result() for rank in ranks]


def test_every_generation_has_its_own_name() -> None:
    meeting = StoreRendezvous(HashStore(), "g")
    agreed = []
    for size in (3, 3, 2, 4, 1):  # also with other numbers of ranks under one name
        names = names_of(meeting, size)
        assert len(set(names)) == 1
        agreed += names[:1]
    assert len(set(agreed)) == 5


def test_who_does_not_join_is_named_though_it_did_before() -> None:
    meeting = StoreRendezvous(HashStore(), "g")
    names_of(meeting, 3)
    with pytest.raises(DeadlineError, match=r"rank 1 did not join group g within 0\.05 s"):
        agree(meeting, rank=0, size=3, group="g", timeout_s=0.05)
    with pytest.raises(DeadlineError, match=r"rank 0 did not join group g within 0\.05 s"):
        agree(meeting, rank=2, size=3, group="g", timeout_s=0.05)
    assert len(set(names_of(meeting, 3))) == 1  # what was given up on is not in the way


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 3])
def test_the_same_names_again_in_the_same_store(size: int) -> None:
    assert run_world(size, lifetimes.generations) == [[size * (size + 1) / 2] * 3] * size


@pytest.mark.ranks
@pytest.mark.parametrize("operation", ["barrier", "all_to_all_single", "all_reduce"])
def test_a_callback_may_be_the_last_to_hold_the_group(operation: str) -> None:
    assert run_world(2, lifetimes.the_last_holder_is_a_callback, operation) == [True, True]


@pytest.mark.ranks
def test_callbacks_may_wait_for_what_runs_on_gloo() -> None:
    assert run_world(2, lifetimes.callbacks_wait_for_gloo) == [[2.0] * 4] * 2


ENDS_DURING_A_CALLBACK = """
import threading, time, torch.distributed as dist
began = threading.Event()
def callback(future, held):
    began.set()
    time.sleep(0.3)
dist.init_process_group("headway", store=dist.HashStore(), rank=0, world_size=1)
future = dist.barrier(async_op=True).get_future()
future.then(lambda done, held=dist.group.WORLD: callback(done, held))
began.wait(10)
dist.destroy_process_group()
"""


@pytest.mark.ranks
def test_the_program_may_end_during_a_callback() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS_DURING_A_CALLBACK], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_handed_over_late_has_its_own_thread() -> None:
    pool = CompletionPool("headway-test")
    pool.close()
    ran: queue.SimpleQueue[str] = queue.SimpleQueue()
    pool.hand_over(lambda: ran.put(threading.current_thread().name))
    assert ran.get(timeout=5) == "headway-test"
