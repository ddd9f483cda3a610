"""The process-group driver over gloo, with ranks as threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from headway.errors import DeadlineError, PeerLostError, TransportError
from headway.transport.process_group import PointToPoint, ProcessGroupTransport
from tests.transport.harness import LIMIT_S


def run_ranks(size: int, body: Callable[[ProcessGroupTransport], None]) -> None:
    """`body` on every rank of a gloo group, each in a thread."""
    store = HashStore()
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            backend = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=LIMIT_S))
            body(ProcessGroupTransport(cast(PointToPoint, backend)))  # torch's stubs leave its calls out
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    if errors:
        raise errors[0]


def test_a_ring_of_matched_messages_with_samples() -> None:
    def body(transport: ProcessGroupTransport) -> None:
        rank, size = transport.rank, transport.size
        following, before = (rank + 1) % size, (rank - 1) % size
        for length in (0, 1, 100_000):
            incoming = bytearray(length)
            sends = [(following, length, memoryview(bytes([rank]) * length))]
            receives = [(before, length, memoryview(incoming))]
            for transfer in transport.exchange(sends, receives):
                sample = transfer.wait(LIMIT_S)
                assert sample.acked_bytes == length
                assert sample.busy_s is None
                assert transfer.done()
                assert transfer.wait(LIMIT_S) is sample
            assert incoming == bytes([before]) * length
        samples = transport.flow_samples()
        assert [(sample.src, sample.dst, sample.acked_bytes) for sample in samples] == [
            (rank, following, length) for length in (0, 1, 100_000)
        ]
        assert transport.flow_samples() == []
        transport.close()
        with pytest.raises(TransportError, match="is closed"):
            transport.send(following, 0, memoryview(b"x"))

    run_ranks(3, body)


def test_tags_match_whatever_the_order() -> None:
    def body(transport: ProcessGroupTransport) -> None:
        if transport.rank == 0:
            for transfer in [transport.send(1, tag, memoryview(bytes([tag]))) for tag in range(4)]:
                transfer.wait(LIMIT_S)
        else:
            for tag in (2, 0, 3, 1):
                buffer = bytearray(1)
                transport.receive(0, tag, memoryview(buffer)).wait(LIMIT_S)
                assert buffer == bytes([tag])

    run_ranks(2, body)


def test_waits_have_a_limit_and_calls_are_checked() -> None:
    met = threading.Barrier(2)

    def body(transport: ProcessGroupTransport) -> None:
        if transport.rank == 0:
            with pytest.raises(TransportError, match="no peer 0"):
                transport.send(0, 0, memoryview(b""))
            with pytest.raises(TransportError, match=r"2\*\*31"):
                transport.send(1, 1 << 31, memoryview(b""))
            with pytest.raises(TransportError, match="read-only"):
                transport.receive(1, 0, memoryview(b"abc"))
            with pytest.raises(DeadlineError, match="receive from rank 1, tag 5") as caught:
                transport.receive(1, 5, memoryview(bytearray(1))).wait(0.05)
            assert caught.value.rank == 1
            # Gloo has closed the connection by that.
            with pytest.raises(PeerLostError, match="rank 1"):
                transport.receive(1, 5, memoryview(bytearray(1))).wait(0.5)
        met.wait(LIMIT_S)

    run_ranks(2, body)


def test_the_room_does_not_need_torch() -> None:
    script = "import sys, headway.transport.api, headway.transport.tcp; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=LIMIT_S).returncode == 0
