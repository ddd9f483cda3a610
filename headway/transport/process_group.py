"""Matched transport on the point-to-point calls of any torch backend, so that the same plans run over NCCL or MPI.

What is below shows no sockets, so a sample here has only the time a transfer took (FCT), from the call to the end of
the wait. NCCL has no tags: messages between two ranks match in the order of the calls, so both sides must use the
same order, and sends and receives that depend on each other must be posted together (`exchange`). Gloo says that a
transfer is done only to whoever waits for it, and closes the connection when a wait times out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from headway.errors import DeadlineError, PeerLostError, TransportError
from headway.observe.samples import FlowSample

# Tags are C ints below.
_TAG_LIMIT = 1 << 31
_CPU = torch.device("cpu")


class _Work(Protocol):
    def wait(self, timeout: timedelta = ...) -> bool: ...

    def is_completed(self) -> bool: ...


class PointToPoint(Protocol):
    """What is needed of a `torch.distributed.ProcessGroup` or of one of its backends. Ranks are in the group."""

    def rank(self) -> int:
        """This process's rank."""
        ...

    def size(self) -> int:
        """Number of ranks."""
        ...

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int) -> _Work:
        """Begin to send."""
        ...

    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int) -> _Work:
        """Begin to receive."""
        ...


class ProcessGroupTransfer:
    """One send or receive (`api.Transfer`). `done` may stay False until `wait` was called: some backends tell late."""

    def __init__(
        self,
        owner: ProcessGroupTransport,
        *,
        sends: bool,
        peer: int,
        tag: int,
        tensor: torch.Tensor,
        into: memoryview | None,
        size_bytes: int,
    ) -> None:
        self._owner = owner
        self._sends, self._peer = sends, peer
        self._tensor, self._into = tensor, into
        self._size_bytes = size_bytes
        self._what = f"{'send to' if sends else 'receive from'} rank {peer}, tag {tag}, {size_bytes} bytes"
        self._start_s = time.monotonic()
        self._sample: FlowSample | None = None
        self._lock = threading.Lock()
        self.works: Sequence[_Work] = ()

    @property
    def peer(self) -> int:
        """The rank at the other end."""
        return self._peer

    def wait(self, timeout_s: float) -> FlowSample:
        """See `api.Transfer`."""
        with self._lock:
            if self._sample is not None:
                return self._sample
            deadline_s = time.monotonic() + timeout_s
            for work in self.works:
                self._wait_for(work, deadline_s, timeout_s)
            if self._into is not None and self._size_bytes:
                # Copying from a GPU waits for what is queued there.
                _as_tensor(self._into).copy_(self._tensor)
            rank = self._owner.rank
            src, dst = (rank, self._peer) if self._sends else (self._peer, rank)
            self._sample = FlowSample(
                src=src, dst=dst, start_s=self._start_s, end_s=time.monotonic(), acked_bytes=self._size_bytes
            )
            self._tensor, self._into, self.works = torch.empty(0), None, ()
        self._owner.completed(self, self._sample if self._sends else None)
        return self._sample

    def _wait_for(self, work: _Work, deadline_s: float, timeout_s: float) -> None:
        if self._owner.closed:
            raise TransportError(f"{self._what}: the transport is closed")
        try:
            # Zero means "for ever" to some backends.
            ended = work.wait(timedelta(seconds=max(0.001, deadline_s - time.monotonic())))
        except RuntimeError as error:
            if time.monotonic() >= deadline_s or "imed out" in str(error):
                raise DeadlineError(f"{self._what}: not done within {timeout_s:g} s", rank=self._peer) from error
            first_line = str(error).partition("\n")[0]
            raise PeerLostError(f"{self._what}: {first_line}", rank=self._peer) from error
        if not ended:
            raise TransportError(f"{self._what}: the backend gave it up", rank=self._peer)

    def done(self) -> bool:
        """See `api.Transfer`."""
        return self._sample is not None or all(work.is_completed() for work in self.works)


class ProcessGroupTransport:
    """`Transport` on a torch process group.

    Args:
        group: a `ProcessGroup`, or one backend of one. `exchange` on a GPU needs a registered `ProcessGroup`.
        device: where the backend wants its tensors. Anything but the CPU costs a copy for each message.
    """

    def __init__(self, group: PointToPoint, device: torch.device = _CPU) -> None:
        self._group, self._device = group, device
        self._rank, self._size = group.rank(), group.size()
        self._lock = threading.Lock()
        self._samples: list[FlowSample] = []
        self._pending: set[ProcessGroupTransfer] = set()
        self.closed = False

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return self._size

    def send(self, peer: int, tag: int, buffer: memoryview) -> ProcessGroupTransfer:
        """See `Transport`; tags are below 2**31."""
        transfer, tensor = self._prepare(sends=True, peer=peer, tag=tag, buffer=buffer)
        self._begin(transfer, lambda: [self._group.send([tensor], peer, tag)])
        return transfer

    def receive(self, peer: int, tag: int, buffer: memoryview) -> ProcessGroupTransfer:
        """See `Transport`; tags are below 2**31."""
        transfer, tensor = self._prepare(sends=False, peer=peer, tag=tag, buffer=buffer)
        self._begin(transfer, lambda: [self._group.recv([tensor], peer, tag)])
        return transfer

    def exchange(
        self, sends: Sequence[tuple[int, int, memoryview]], receives: Sequence[tuple[int, int, memoryview]]
    ) -> list[ProcessGroupTransfer]:
        """Begin all `sends` and `receives`, each (peer, tag, buffer), as one: sends first in the list returned.

        On a GPU they become one group call, without which NCCL waits for ever where two ranks send to each other.
        """
        if self._device.type == "cpu" or not isinstance(self._group, dist.ProcessGroup):
            return [self.send(*entry) for entry in sends] + [self.receive(*entry) for entry in receives]
        transfers: list[ProcessGroupTransfer] = []
        operations: list[dist.P2POp] = []
        for entries, is_send in ((sends, True), (receives, False)):
            for peer, tag, buffer in entries:
                transfer, tensor = self._prepare(sends=is_send, peer=peer, tag=tag, buffer=buffer)
                call = dist.isend if is_send else dist.irecv
                operations.append(dist.P2POp(call, tensor, group=self._group, tag=tag, group_peer=peer))
                transfers.append(transfer)
        if transfers:
            works = dist.batch_isend_irecv(operations)
            for transfer in transfers:
                # The backend may answer with one work for all.
                transfer.works = works
        return transfers

    def flow_samples(self) -> list[FlowSample]:
        """See `Transport`: one sample for each send that was waited for since the last call."""
        with self._lock:
            samples, self._samples = self._samples, []
        return samples

    def close(self) -> None:
        """See `Transport`. The group is not ours and stays; transfers that were not waited for can't be any more."""
        self.closed = True
        with self._lock:
            self._pending.clear()

    def completed(self, transfer: ProcessGroupTransfer, sample: FlowSample | None) -> None:
        """A transfer was waited for."""
        with self._lock:
            self._pending.discard(transfer)
            if sample is not None:
                self._samples.append(sample)

    def _prepare(
        self, *, sends: bool, peer: int, tag: int, buffer: memoryview
    ) -> tuple[ProcessGroupTransfer, torch.Tensor]:
        if self.closed:
            raise TransportError(f"the transport of rank {self._rank} is closed")
        if not 0 <= peer < self._size or peer == self._rank:
            raise TransportError(f"rank {self._rank} has no peer {peer} in a group of {self._size}")
        if not 0 <= tag < _TAG_LIMIT:
            raise TransportError(f"tag {tag} is not in [0, 2**31): torch's backends count no further")
        if not sends and buffer.readonly:
            raise TransportError(f"receive from rank {peer}, tag {tag}: the buffer is read-only")
        into: memoryview | None = None
        if self._device.type == "cpu":
            tensor = _as_tensor(buffer)
        elif sends:
            tensor = _as_tensor(buffer).to(self._device)
        else:
            tensor, into = torch.empty(len(buffer), dtype=torch.uint8, device=self._device), buffer
        transfer = ProcessGroupTransfer(
            self, sends=sends, peer=peer, tag=tag, tensor=tensor, into=into, size_bytes=len(buffer)
        )
        with self._lock:
            # A transfer holds its tensor: one that nobody keeps must not free memory that the backend still uses.
            self._pending.add(transfer)
        return transfer, tensor

    def _begin(self, transfer: ProcessGroupTransfer, post: Callable[[], Sequence[_Work]]) -> None:
        try:
            transfer.works = post()
        except RuntimeError as error:
            self.completed(transfer, None)
            first_line = str(error).partition("\n")[0]
            raise PeerLostError(f"rank {transfer.peer} cannot be reached: {first_line}", rank=transfer.peer) from error


def _as_tensor(buffer: memoryview) -> torch.Tensor:
    """The same memory as bytes; a copy where the buffer is read-only, which torch does not know."""
    if not len(buffer):
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(buffer) if buffer.readonly else buffer, dtype=torch.uint8)
